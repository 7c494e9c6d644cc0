package bed

import "berth/internal/bench/result"

// diskMeasures are what a fio trial gives, by the keys of its values.
func diskMeasures() []result.Measure {
	return []result.Measure{
		{Name: "iops", Title: "requests", Unit: "1/s", Compared: true},
		{Name: "bytes_per_second", Title: "throughput", Unit: "B/s"},
		{Name: "lat_mean_us", Title: "mean latency", Unit: "us", LessIsBetter: true, Compared: true},
		{Name: "lat_p50_us", Title: "latency, median", Unit: "us", LessIsBetter: true},
		{Name: "lat_p90_us", Title: "latency, 90th percentile", Unit: "us", LessIsBetter: true},
		{Name: "lat_p99_us", Title: "latency, 99th percentile", Unit: "us", LessIsBetter: true, Compared: true},
		{Name: "lat_p999_us", Title: "latency, 99.9th percentile", Unit: "us", LessIsBetter: true},
	}
}

// netMeasures are what trials of a network give: a stream the first two, round trips the others.
func netMeasures() []result.Measure {
	return []result.Measure{
		{Name: "bits_per_second", Title: "throughput", Unit: "bit/s", Compared: true},
		{Name: "cpu_s_per_gb", Title: "CPU time of this machine", Unit: "s/GB", LessIsBetter: true, Compared: true},
		{Name: "p50_us", Title: "round trip, median", Unit: "us", LessIsBetter: true, Compared: true},
		{Name: "p99_us", Title: "round trip, 99th percentile", Unit: "us", LessIsBetter: true, Compared: true},
	}
}
