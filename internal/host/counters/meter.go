package counters

import (
	"bytes"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/group"
)

// Unknown is the value of a count that this host does not keep.
const Unknown = -1

// Counters is what the kernel has counted for a group so far. A number that is not counted here is Unknown.
type Counters struct {
	CPU       time.Duration // CPU time used
	Throttled time.Duration // time that cpu.max kept it from running, summed over CPUs
	Memory    int64         // bytes
	MemoryMax int64         // bytes; Unknown where there is no limit
	OOMKills  int64
	PIDs      int64
	Pressure  Pressure
	Disks     []DiskCount // nil: not counted here
}

// Pressure is how long the group's tasks have waited for resources since the group was made (PSI, Linux 4.20, cgroup v2).
type Pressure struct {
	CPU, Memory, IO Stall
}

// Stall is time waited for one resource.
type Stall struct {
	Some time.Duration // at least one task waited
	Full time.Duration // all tasks that were not idle waited
}

// DiskCount is what a group read from and wrote to one disk.
type DiskCount struct {
	Major, Minor          uint32
	ReadBytes, WriteBytes int64
	ReadOps, WriteOps     int64
	Waited                time.Duration // how long weights held requests back; only iocost counts it, if told to (docs/top.md)
}

// Meter reads the counters of many groups repeatedly: each file once per reading, into one buffer.
type Meter struct {
	h    host.Cgroups
	buf  []byte
	path []byte
	bfq  bool
}

// NewMeter returns a meter. bfq says that BFQ schedules some disk here; on cgroup v1 it has counters of its own.
func NewMeter(h host.Cgroups, bfq bool) *Meter {
	return &Meter{h: h, buf: make([]byte, 16<<10), bfq: bfq}
}

// Read reads the counters of a group. ok is false if the group does not exist.
func (m *Meter) Read(group string) (c Counters, ok bool) {
	c = Counters{
		CPU: Unknown, Throttled: Unknown, Memory: Unknown, MemoryMax: Unknown, OOMKills: Unknown, PIDs: Unknown,
		Pressure: Pressure{noStall(), noStall(), noStall()},
	}
	m.cpu(group, &c)
	m.memory(group, &c)
	if dir := m.dir("pids"); dir != "" {
		c.PIDs = m.number(dir, group, "pids.current")
	}
	m.disks(group, &c)
	if m.h.V2 != "" {
		c.Pressure.CPU = m.stall(group, "cpu.pressure")
		c.Pressure.Memory = m.stall(group, "memory.pressure")
		c.Pressure.IO = m.stall(group, "io.pressure")
	}
	return c, c.CPU != Unknown || c.Throttled != Unknown || c.Memory != Unknown || c.PIDs != Unknown || c.Disks != nil
}

func noStall() Stall { return Stall{Unknown, Unknown} }

// dir returns the mount of the hierarchy that has a controller; "" if none has.
func (m *Meter) dir(controller string) string {
	switch v1 := group.V1Name(controller); {
	case m.h.Has(v1) == "v1":
		return m.h.V1[v1]
	case m.h.Has(controller) == "v2":
		return m.h.V2
	}
	return ""
}

func (m *Meter) cpu(at string, c *Counters) {
	if dir := m.h.V1["cpuacct"]; dir != "" {
		c.CPU = time.Duration(m.number(dir, at, "cpuacct.usage"))
	}
	if dir := m.h.V1["cpu"]; dir != "" {
		m.each(dir, at, "cpu.stat", func(key, value []byte) {
			if string(key) == "throttled_time" { // ns
				c.Throttled = time.Duration(decimal(value))
			}
		})
	}
	if m.h.V2 == "" || c.CPU != Unknown {
		return
	}
	m.each(m.h.V2, at, "cpu.stat", func(key, value []byte) {
		switch string(key) {
		case "usage_usec":
			c.CPU = micro(value)
		case "throttled_usec":
			c.Throttled = micro(value)
		}
	})
	if root := group.Container(m.h, at); root != at { // see Stats
		m.each(m.h.V2, root, "cpu.stat", func(key, value []byte) {
			if string(key) == "throttled_usec" {
				c.Throttled = max(c.Throttled, micro(value))
			}
		})
	}
}

// noLimit is the least value that v1 shows for unlimited memory: the greatest multiple of the page size below 2^63, for
// pages of 64 KiB.
const noLimit = 1<<63 - 1<<16

func (m *Meter) memory(group string, c *Counters) {
	dir := m.dir("memory")
	var events string
	switch m.h.Has("memory") {
	case "v1":
		c.Memory = m.number(dir, group, "memory.usage_in_bytes")
		c.MemoryMax = m.number(dir, group, "memory.limit_in_bytes")
		events = "memory.oom_control"
	case "v2":
		c.Memory = m.number(dir, group, "memory.current")
		c.MemoryMax = m.number(dir, group, "memory.max")
		events = "memory.events"
	default:
		return
	}
	if c.MemoryMax >= noLimit {
		c.MemoryMax = Unknown
	}
	m.each(dir, group, events, func(key, value []byte) {
		if string(key) == "oom_kill" {
			c.OOMKills = decimal(value)
		}
	})
}

func (m *Meter) disks(group string, c *Counters) {
	if m.h.Has("blkio") == "v1" {
		m.diskFile(group, "blkio.throttle.io_service_bytes_recursive", c, func(d *DiskCount) (r, w *int64) { return &d.ReadBytes, &d.WriteBytes })
		m.diskFile(group, "blkio.throttle.io_serviced_recursive", c, func(d *DiskCount) (r, w *int64) { return &d.ReadOps, &d.WriteOps })
		if m.bfq {
			m.diskFile(group, "blkio.bfq.io_service_bytes_recursive", c, func(d *DiskCount) (r, w *int64) { return &d.ReadBytes, &d.WriteBytes })
			m.diskFile(group, "blkio.bfq.io_serviced_recursive", c, func(d *DiskCount) (r, w *int64) { return &d.ReadOps, &d.WriteOps })
		}
		return
	}
	if m.h.Has("io") == "v2" {
		m.ioStat(group, c)
	}
}

// diskFile reads a v1 file of "254:0 Read 4096" lines. Two files may count the same I/O: the greater number counts.
func (m *Meter) diskFile(group, name string, c *Counters, at func(*DiskCount) (read, write *int64)) {
	text := m.read(m.h.V1["blkio"], group, name)
	c.counted(text)
	for line := range bytes.Lines(text) {
		number, rest := word(line)
		what, rest := word(rest)
		count, _ := word(rest)
		major, minor, ok := deviceNumber(number)
		if !ok {
			continue // the line with the total
		}
		read, write := at(c.disk(major, minor))
		switch string(what) {
		case "Read":
			*read = max(*read, decimal(count))
		case "Write":
			*write = max(*write, decimal(count))
		}
	}
}

// ioStat reads v2's lines of "254:0 rbytes=4096 wbytes=0 rios=1 wios=0 …".
func (m *Meter) ioStat(group string, c *Counters) {
	text := m.read(m.h.V2, group, "io.stat")
	c.counted(text)
	for line := range bytes.Lines(text) {
		number, rest := word(line)
		major, minor, ok := deviceNumber(number)
		if !ok || len(bytes.TrimSpace(rest)) == 0 {
			continue
		}
		d := c.disk(major, minor)
		for len(rest) > 0 {
			var field []byte
			field, rest = word(rest)
			key, value, _ := bytes.Cut(field, []byte("="))
			switch string(key) {
			case "rbytes":
				d.ReadBytes = decimal(value)
			case "wbytes":
				d.WriteBytes = decimal(value)
			case "rios":
				d.ReadOps = decimal(value)
			case "wios":
				d.WriteOps = decimal(value)
			case "cost.wait":
				d.Waited = micro(value)
			}
		}
	}
}

// counted notes that disks are counted here, if the file exists, even if it is empty.
func (c *Counters) counted(text []byte) {
	if text != nil && c.Disks == nil {
		c.Disks = []DiskCount{}
	}
}

// disk returns the entry of a disk, and adds it if it is missing.
func (c *Counters) disk(major, minor uint32) *DiskCount {
	for i := range c.Disks {
		if d := &c.Disks[i]; d.Major == major && d.Minor == minor {
			return d
		}
	}
	c.Disks = append(c.Disks, DiskCount{Major: major, Minor: minor, Waited: Unknown})
	return &c.Disks[len(c.Disks)-1]
}

// stall reads a pressure file: "some avg10=0.00 avg60=0.00 avg300=0.00 total=12345", then the same for full. total is in µs.
func (m *Meter) stall(group, name string) Stall {
	return parseStall(m.read(m.h.V2, group, name))
}

// HostPressure reads how long the tasks of the whole host have waited, from the folder of PSI ("/proc/pressure").
func (m *Meter) HostPressure(dir string) Pressure {
	return Pressure{parseStall(m.read(dir, "", "cpu")), parseStall(m.read(dir, "", "memory")), parseStall(m.read(dir, "", "io"))}
}

func parseStall(text []byte) Stall {
	s := noStall()
	for line := range bytes.Lines(text) {
		_, total, found := bytes.Cut(line, []byte("total="))
		if !found {
			continue
		}
		waited := micro(bytes.TrimSpace(total))
		if bytes.HasPrefix(line, []byte("some")) {
			s.Some = waited
		} else {
			s.Full = waited
		}
	}
	return s
}

// number reads a file of one number; "max" and a file that cannot be read are Unknown.
func (m *Meter) number(dir, group, name string) int64 {
	return decimal(bytes.TrimSpace(m.read(dir, group, name)))
}

// each calls f for each line of "name number".
func (m *Meter) each(dir, group, name string, f func(key, value []byte)) {
	for line := range bytes.Lines(m.read(dir, group, name)) {
		key, rest := word(line)
		value, _ := word(rest)
		f(key, value)
	}
}

// read returns the text of a control file, valid until the next read; nil if it cannot be read. os.ReadFile would take
// three times as long: it also asks for the size and registers the file with the poller.
func (m *Meter) read(dir, group, name string) []byte {
	m.path = append(m.path[:0], dir...)
	for _, part := range []string{group, name} {
		if part != "" {
			m.path = append(append(m.path, '/'), part...)
		}
	}
	fd, err := unix.Open(string(m.path), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	for {
		n, err := unix.Pread(fd, m.buf, 0) // the kernel returns a control file whole if the buffer is large enough
		if err != nil {
			return nil
		}
		if n < len(m.buf) {
			return m.buf[:n]
		}
		m.buf = make([]byte, 2*len(m.buf))
	}
}

// word cuts the first word off a line.
func word(line []byte) (first, rest []byte) {
	line = bytes.TrimLeft(line, " \t\n")
	if i := bytes.IndexAny(line, " \t\n"); i >= 0 {
		return line[:i], line[i:]
	}
	return line, nil
}

// decimal reads a whole number; any other text is Unknown.
func decimal(text []byte) int64 {
	var n int64
	if len(text) == 0 {
		return Unknown
	}
	for _, c := range text {
		if c < '0' || c > '9' || n > (1<<63-1-9)/10 {
			return Unknown
		}
		n = n*10 + int64(c-'0')
	}
	return n
}

// micro reads a number of microseconds.
func micro(text []byte) time.Duration {
	n := decimal(text)
	if n == Unknown {
		return Unknown
	}
	return time.Duration(n) * time.Microsecond
}

// deviceNumber reads "254:0".
func deviceNumber(text []byte) (major, minor uint32, ok bool) {
	a, b, found := bytes.Cut(text, []byte(":"))
	x, y := decimal(a), decimal(b)
	return uint32(x), uint32(y), found && x >= 0 && y >= 0
}
