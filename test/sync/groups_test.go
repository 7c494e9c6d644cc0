package sync

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/test/testkit"
)

// labDisk names the environment variable for the disk of a machine of the lab, in which test/lab runs tests of this package on cgroup v2.
const labDisk = "BERTH_SYNC_DISK"

// emulated says that the CPUs are those of the lab: rates and files are smaller there, and waits longer.
var emulated = os.Getenv(labDisk) != ""

// shorts is how many short connections of each node follow one another.
var shorts = map[bool]int64{true: 5, false: 10}[emulated]

// asked is the rate of the limited node, in bytes a second, where the CPUs are real.
const asked = 10_000_000

// scaled is a rate for the CPUs of this host.
func scaled[N int | uint64 | float64](n N) N {
	if emulated {
		return n / 5 * 2
	}
	return n
}

// mb is a rate of so many MB/s, scaled, as a spec has it.
func mb(n int) string {
	kb := scaled(1000 * n)
	if kb%1000 == 0 {
		return fmt.Sprintf("%dMB/s", kb/1000)
	}
	return fmt.Sprintf("%dkB/s", kb)
}

// sized is the size of a file that is read at a rate that is scaled. Where the run does not measure, it is read for half as long: at
// least 4 s, of which the first slice of the throttle, 0.1 s, is less than the 5 % by which a rate may be above its limit.
func sized(bytes int64) int64 {
	switch {
	case emulated:
		return bytes / 5
	case !testkit.Measures():
		return bytes / 2
	}
	return bytes
}

// mostlyWaits has a test run beside others of its kind, unless the run measures, or a machine of the lab has one disk for all.
func mostlyWaits(t *testing.T) {
	if !emulated && !testkit.Measures() {
		t.Parallel()
	}
}

// large is the size of the file that the node without a limit reads: how fast that is only counts where the run measures.
func large() int64 {
	if !emulated && !testkit.Measures() {
		return 32 << 20
	}
	return sized(400 << 20)
}

// tree is where this host limits block I/O: blkio of cgroup v1, or in the lab v2; "" if neither.
func tree() string {
	const v1, v2 = "/sys/fs/cgroup/blkio", "/sys/fs/cgroup"
	if _, err := os.Stat(v1 + "/blkio.throttle.read_bps_device"); err == nil {
		return v1
	}
	if emulated {
		return v2
	}
	return ""
}

// limit is what a node may read, as the kernel has it; 0 for no limit.
func (s *site) limit(node string) uint64 { return s.throttle(node, "read") }

func (s *site) throttle(node, does string) uint64 {
	text, _ := os.ReadFile(filepath.Join(s.group(node), "blkio.throttle."+does+"_bps_device"))
	value := regexp.MustCompile(`^\d+:\d+ (\d+)`)
	if emulated {
		text, _ = os.ReadFile(filepath.Join(s.group(node), "io.max"))
		value = regexp.MustCompile(does[:1] + `bps=(\d+)`)
	}
	m := value.FindSubmatch(text)
	if m == nil {
		return 0
	}
	n, _ := strconv.ParseUint(string(m[1]), 10, 64)
	return n
}

// group is the folder of a node's group on the file server.
func (s *site) group(node string) string {
	return filepath.Join(tree(), s.layout.CgroupParent()+".sync", "shared", node)
}

// counted is how many bytes were read for a node, as its group was charged.
func (s *site) counted(node string) uint64 {
	s.t.Helper()
	sum, err := s.charged(node, "read")
	if err != nil {
		s.t.Fatal(err)
	}
	return sum
}

func (s *site) charged(node, does string) (sum uint64, err error) {
	// Count this disk alone: the kernel charges the group for what a loop device does on the disk below, too.
	disk, err := os.ReadFile("/sys/block/" + filepath.Base(s.disk) + "/dev")
	if err != nil {
		return 0, err
	}
	number := `(?im)^` + strings.TrimSpace(string(disk)) + ` `
	file, value := "blkio.throttle.io_service_bytes_recursive", regexp.MustCompile(number+does+` (\d+)`)
	if emulated {
		file, value = "io.stat", regexp.MustCompile(number+`.*\b`+does[:1]+`bytes=(\d+)`)
	}
	text, err := os.ReadFile(filepath.Join(s.group(node), file))
	for _, m := range value.FindAllSubmatch(text, -1) {
		n, _ := strconv.ParseUint(string(m[1]), 10, 64)
		sum += n
	}
	return sum, err
}

// paced runs what reads or writes size bytes in a node, and returns bytes a second: as the client sees it; in the lab, where to start a
// client takes a second, as the node's group was charged from the first to the last byte.
func (s *site) paced(node, does string, size int64, run func()) float64 {
	s.t.Helper()
	if _, err := s.charged(node, does); !emulated || err != nil { // one that is not limited has no group
		began := time.Now()
		run()
		return float64(size) / time.Since(began).Seconds()
	}
	type look struct {
		at    time.Time
		bytes uint64
	}
	done := make(chan struct{})
	go func() { defer close(done); run() }()
	last, _ := s.charged(node, does)
	var grew []look // when the counter had grown
	for {
		select {
		case <-done:
			if len(grew) < 2 {
				return 0
			}
			first, end := grew[0], grew[len(grew)-1]
			return float64(end.bytes-first.bytes) / end.at.Sub(first.at).Seconds()
		case <-time.After(10 * time.Millisecond):
		}
		if now, err := s.charged(node, does); err == nil && now > last {
			grew, last = append(grew, look{time.Now(), now}), now
		}
	}
}

// holds compares what the limited node read a second with what was asked for.
func holds(t *testing.T, rate float64, how string) {
	t.Helper()
	want := scaled[float64](asked)
	within(t, "reads "+how, rate, want, 0.95)
}

// within compares a rate of the limited node with the one that was asked for, of which it has at least a part where the run measures. In
// the lab one that is too low is only said: test/lab knows whether its machine had the time, and judges.
func within(t *testing.T, what string, got, asked, least float64) {
	t.Helper()
	switch {
	case got > 1.05*asked:
		t.Errorf("slow %s %.2f MB/s, asked for %.1f", what, got/1e6, asked/1e6)
	case !emulated:
		testkit.Rate(t, "MB/s that slow "+what, got/1e6, asked/1e6, 1-least)
	case got < least*asked:
		t.Logf("too slow: it %s %.2f MB/s, asked for %.1f", what, got/1e6, asked/1e6)
	default:
		t.Logf("slow %s %.2f MB/s of %.1f", what, got/1e6, asked/1e6)
	}
}

// neighbour compares what a node without a limit read beside the limited one with what it read alone, where the run measures. In the lab
// all that both do is done by few slow CPUs, and says nothing of the disk.
func neighbour(t *testing.T, alone, beside float64) {
	t.Helper()
	t.Logf("fast read %.0f MB/s alone, %.0f beside it", alone/1e6, beside/1e6)
	if beside < 0.7*alone && testkit.Measures() && !emulated {
		t.Errorf("fast read %.0f MB/s beside slow, %.0f alone: less than 70 %%", beside/1e6, alone/1e6)
	}
}
