package top

import (
	"time"

	"berth/internal/host/counters"
	"berth/internal/network/shape"
)

// Sample is what the host and its nodes used during one interval. A nil value is not counted on this host, or not known
// yet: rates need a sample before.
type Sample struct {
	Time     time.Time     `json:"time"`
	Interval time.Duration `json:"interval_ns,omitempty"` // since the sample before
	Host     HostUse       `json:"host"`
	Nodes    []Use         `json:"nodes"`
}

// HostUse is what the whole host used.
type HostUse struct {
	CPUs        int          `json:"cpus"`
	CPU         *float64     `json:"cpu_percent,omitempty"` // 100: one CPU
	Memory      int64        `json:"memory"`                // bytes
	MemoryTotal int64        `json:"memory_total"`
	Pressure    *PressureUse `json:"pressure,omitempty"`
}

// The kinds of Use.
const (
	KindNode    = "node"
	KindService = "service" // of the host, protected
)

// Use is the resource use of one node, or of a protected service of the host.
type Use struct {
	Name      string       `json:"name"`
	Kind      string       `json:"kind"` // node | service
	Class     string       `json:"class,omitempty"`
	CPU       *float64     `json:"cpu_percent,omitempty"`       // 100: one CPU
	Throttled *float64     `json:"throttled_percent,omitempty"` // time that cpu.max kept it from running, in % of the interval, summed over CPUs
	Memory    *int64       `json:"memory,omitempty"`            // bytes
	MemoryMax *int64       `json:"memory_max,omitempty"`        // bytes
	OOMKills  *int64       `json:"oom_kills,omitempty"`         // since it started
	PIDs      *int64       `json:"pids,omitempty"`
	Pressure  *PressureUse `json:"pressure,omitempty"`
	Disks     []DiskUse    `json:"disks,omitzero"`
	Links     []LinkUse    `json:"links,omitzero"`
}

// PressureUse is the part of the interval that tasks waited for a resource.
type PressureUse struct {
	CPU    *StallUse `json:"cpu,omitempty"`
	Memory *StallUse `json:"memory,omitempty"`
	IO     *StallUse `json:"io,omitempty"`
}

// StallUse is in percent of the interval.
type StallUse struct {
	Some *float64 `json:"some_percent,omitempty"` // at least one task waited
	Full *float64 `json:"full_percent,omitempty"` // all that were not idle did
}

// DiskUse is what a node read and wrote a second.
type DiskUse struct {
	Disk       string   `json:"disk"`
	ReadBytes  float64  `json:"read_bytes"`
	WriteBytes float64  `json:"write_bytes"`
	ReadOps    float64  `json:"read_ops"`
	WriteOps   float64  `json:"write_ops"`
	Waited     *float64 `json:"waited_percent,omitempty"` // time that weight held requests back, in % of the interval, summed over requests
}

// LinkUse is what an interface carried a second.
type LinkUse struct {
	Link      string  `json:"link"`
	RXBits    float64 `json:"rx_bits"`
	TXBits    float64 `json:"tx_bits"`
	RXPackets float64 `json:"rx_packets"`
	TXPackets float64 `json:"tx_packets"`
}

// levels fills in the values that follow from one reading.
func (u *Use) levels(r reading) {
	u.Memory, u.MemoryMax = known(r.Memory), known(r.MemoryMax)
	u.OOMKills, u.PIDs = known(r.OOMKills), known(r.PIDs)
}

// rates fills in the rates between two readings.
func (u *Use) rates(was, is reading, names diskNames) {
	past := is.at.Sub(was.at)
	if past <= 0 {
		return
	}
	u.CPU = percent(was.CPU, is.CPU, past)
	u.Throttled = percent(was.Throttled, is.Throttled, past)
	u.Pressure = pressureUse(was.Pressure, is.Pressure, past)
	if is.Disks != nil {
		u.Disks = []DiskUse{}
	}
	if is.links != nil {
		u.Links = []LinkUse{}
	}
	for _, d := range is.Disks {
		before := counters.DiskCount{Major: d.Major, Minor: d.Minor} // not there: it had done nothing
		for _, b := range was.Disks {
			if b.Major == d.Major && b.Minor == d.Minor {
				before = b
			}
		}
		u.Disks = append(u.Disks, DiskUse{
			Disk:      names.of(d.Major, d.Minor),
			ReadBytes: perSecond(before.ReadBytes, d.ReadBytes, past), WriteBytes: perSecond(before.WriteBytes, d.WriteBytes, past),
			ReadOps: perSecond(before.ReadOps, d.ReadOps, past), WriteOps: perSecond(before.WriteOps, d.WriteOps, past),
			Waited: percent(before.Waited, d.Waited, past),
		})
	}
	for _, l := range is.links {
		var before shape.Count
		for _, b := range was.links {
			if b.Name == l.Name {
				before = b
			}
		}
		u.Links = append(u.Links, LinkUse{
			Link:   l.Name,
			RXBits: 8 * perSecond(before.RXBytes, l.RXBytes, past), TXBits: 8 * perSecond(before.TXBytes, l.TXBytes, past),
			RXPackets: perSecond(before.RXPackets, l.RXPackets, past), TXPackets: perSecond(before.TXPackets, l.TXPackets, past),
		})
	}
}

func pressureUse(was, is counters.Pressure, past time.Duration) *PressureUse {
	stall := func(was, is counters.Stall) *StallUse {
		s := StallUse{percent(was.Some, is.Some, past), percent(was.Full, is.Full, past)}
		if s == (StallUse{}) {
			return nil
		}
		return &s
	}
	p := PressureUse{stall(was.CPU, is.CPU), stall(was.Memory, is.Memory), stall(was.IO, is.IO)}
	if p == (PressureUse{}) {
		return nil
	}
	return &p
}

func known(n int64) *int64 {
	if n == counters.Unknown {
		return nil
	}
	return &n
}

// percent is the part of the time past by which a counter of time grew; nil if it is not counted.
func percent(was, is, past time.Duration) *float64 {
	if was == counters.Unknown || is == counters.Unknown || past <= 0 {
		return nil
	}
	p := rounded(100 * float64(max(is-was, 0)) / float64(past))
	return &p
}

// perSecond is by how much a counter grew a second. One that shrank is another disk's, which has the number now.
func perSecond(was, is int64, past time.Duration) float64 {
	if is < was {
		was = 0
	}
	return rounded(float64(is-was) / past.Seconds())
}

// rounded keeps two digits behind the point: more is noise.
func rounded(f float64) float64 {
	const hundredths = 100
	return float64(int64(f*hundredths+0.5)) / hundredths
}
