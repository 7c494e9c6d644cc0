// Package fio writes calls of the program fio, and reads what it measured.
package fio

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"berth/internal/jsonfile"
)

// Job is one call of fio: the same work on all of its files at once. docs/METHOD.md says why each option is there.
type Job struct {
	Files   []string
	Size    int64  // bytes of each file that are used
	Pattern string // fio's rw: read, write, randread, randwrite, randrw (half of each); "randread:16" reads 16 requests in a row from each random place
	Block   int64  // bytes of a request
	Threads int    // on each file; default 1
	Depth   int    // requests in flight a thread; default 1. More takes libaio
	Think   time.Duration
	Run     time.Duration
	Warm    time.Duration // before it, not counted
	New     bool          // the files are made, written once from begin to end and removed
	Once    bool          // the files are written once from begin to end, over what they hold
	Scatter bool          // each call reads other places
}

// Reads says whether the job reads, and only reads.
func (j Job) Reads() bool {
	verb, _, _ := strings.Cut(j.Pattern, ":")
	return strings.HasSuffix(verb, "read")
}

// Args returns the command.
func (j Job) Args() []string {
	engine, depth := "psync", max(j.Depth, 1)
	if depth > 1 {
		engine = "libaio"
	}
	argv := []string{
		"fio", "--output-format=json", "--eta=never", "--size=" + strconv.FormatInt(j.Size, 10),
		"--rw=" + j.Pattern, "--bs=" + strconv.FormatInt(j.Block, 10), "--direct=1",
		"--ioengine=" + engine, "--iodepth=" + strconv.Itoa(depth), "--thread", "--numjobs=" + strconv.Itoa(max(j.Threads, 1)),
		"--group_reporting", "--norandommap", "--unified_rw_reporting=mixed", "--runtime=" + millis(j.Run),
		"--clocksource=clock_gettime", "--disk_util=0", "--percentile_list=50:90:99:99.9",
	}
	switch {
	case j.New:
		argv = append(argv, "--create_on_open=1", "--unlink=1", "--fallocate=none")
	case j.Once:
		argv = append(argv, "--allow_file_create=0")
	default:
		argv = append(argv, "--allow_file_create=0", "--time_based", "--ramp_time="+millis(j.Warm))
	}
	if j.Scatter {
		argv = append(argv, "--randrepeat=0")
	}
	if j.Think > 0 {
		argv = append(argv, "--thinktime="+strconv.FormatInt(j.Think.Microseconds(), 10))
	}
	if j.Reads() {
		argv = append(argv, "--readonly")
	}
	for i, path := range j.Files { // options before the first name are for all jobs; a bare colon separates files
		argv = append(argv, "--name=t"+strconv.Itoa(i), "--filename="+strings.ReplaceAll(path, ":", `\:`))
	}
	return argv
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) + "ms" }

// Read reads fio's JSON of a call with --unified_rw_reporting=mixed and --group_reporting; notes of fio's may precede it. Latencies are
// in microseconds.
func Read(out []byte) (map[string]float64, error) {
	start := bytes.IndexByte(out, '{')
	if start < 0 {
		return nil, errors.New("read fio's result: it printed no JSON")
	}
	var doc struct {
		Jobs []struct {
			Error int `json:"error"`
			Mixed struct {
				IOPS    float64 `json:"iops"`
				BWBytes float64 `json:"bw_bytes"`
				IOs     int64   `json:"total_ios"`
				Lat     struct {
					Mean float64 `json:"mean"`
				} `json:"lat_ns"`
				CLat struct {
					Percentile map[string]float64 `json:"percentile"`
				} `json:"clat_ns"`
			} `json:"mixed"`
		} `json:"jobs"`
	}
	if err := json.NewDecoder(bytes.NewReader(out[start:])).Decode(&doc); err != nil {
		return nil, fmt.Errorf("read fio's result: %s", jsonfile.Wrong(out[start:], err))
	}
	if len(doc.Jobs) != 1 {
		return nil, fmt.Errorf("read fio's result: %d jobs, want 1", len(doc.Jobs))
	}
	d := doc.Jobs[0].Mixed
	switch {
	case doc.Jobs[0].Error != 0:
		return nil, fmt.Errorf("read fio's result: fio reports errno %d", doc.Jobs[0].Error)
	case d.IOs <= 0 || !(d.IOPS > 0):
		return nil, errors.New("read fio's result: not one request was completed after the warm-up")
	}
	p := d.CLat.Percentile
	return map[string]float64{
		"iops": d.IOPS, "bytes_per_second": d.BWBytes, "lat_mean_us": d.Lat.Mean / 1e3,
		"lat_p50_us": p["50.000000"] / 1e3, "lat_p90_us": p["90.000000"] / 1e3,
		"lat_p99_us": p["99.000000"] / 1e3, "lat_p999_us": p["99.900000"] / 1e3,
	}, nil
}

// ReadSteady says whether a call with --steadystate found the speed level.
func ReadSteady(out []byte) (bool, error) {
	var doc struct {
		Jobs []struct {
			Steady struct {
				Attained int `json:"attained"`
			} `json:"steadystate"`
		} `json:"jobs"`
	}
	if err := json.NewDecoder(bytes.NewReader(out[max(bytes.IndexByte(out, '{'), 0):])).Decode(&doc); err != nil {
		return false, fmt.Errorf("read whether the disk is steady: %s", jsonfile.Wrong(out, err))
	}
	return len(doc.Jobs) > 0 && doc.Jobs[0].Steady.Attained == 1, nil
}
