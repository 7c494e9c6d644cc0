package sync

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/test/testkit"
)

// weightOf is what a node's group weighs on the disk, as the kernel has it; 0 if nobody said.
func (s *site) weightOf(node string) int {
	text, _ := os.ReadFile(filepath.Join(s.group(node), "blkio.bfq.weight_device"))
	for line := range strings.Lines(string(text)) {
		if number, weight, ok := strings.Cut(strings.TrimSpace(line), " "); ok && number == s.number() {
			n, _ := strconv.Atoi(weight)
			return n
		}
	}
	return 0
}

// TestClasses: on a server whose capacity is known, a node of class storage has what it wants, and others share what is left by
// their weights; it is given back when the first rests. Where the disk shares by weight, classes weigh there too.
func TestClasses(t *testing.T) {
	mostlyWaits(t)
	s := newSite(t, "198.51.110")
	s.configure(fmt.Sprintf("filesystems: [{name: shared, path: %s, server: sftp, capacity: {read: {rate: 24MB/s}}}]\n", s.served))
	scheduler := "/sys/block/" + filepath.Base(s.disk) + "/queue/scheduler"
	if !strings.Contains(s.run("cat", scheduler), "bfq") {
		t.Skip("needs BFQ")
	}
	was := regexp.MustCompile(`\[(.*)\]`).FindStringSubmatch(s.run("cat", scheduler))[1]
	t.Cleanup(func() { s.run("sh", "-c", "echo $1 > $0", scheduler, was) })
	s.run("sh", "-c", "echo none > $0", scheduler)
	s.start()
	nodes := []string{"first", "heavy", "light"}
	for _, n := range nodes {
		if testkit.Measures() {
			s.file(n, 250<<20)
		}
	}
	s.serve()
	mounted := "mounts: [{source: '" + s.net + ".1:/', target: /mnt, gateway: sshfs-direct}]\n"
	for i, more := range []string{
		"class: storage\nio: [{name: s, filesystem: shared, read: {rate: 11MB/s}}]\n",
		"io: [{name: s, filesystem: shared, read: {rate: 20MB/s}, weight: 300}]\n", "io: [{name: s, filesystem: shared, read: {rate: 20MB/s}}]\n",
	} {
		if i == 1 {
			h, _ := s.held("first")
			if h.Class != "storage" || !strings.Contains(h.Missing, "class: ") || h.Failed != "" || s.limit("first") == 0 {
				t.Errorf("berth sync ls says of a class on a disk that does not share by weight: %+v", h)
			}
			s.berth("set", "first", "io.s.read.rate=12MB/s", "io.s.weight=100")
			s.eventually("the rate holds without the weight", time.Second, func() bool {
				h, _ := s.held("first")
				return strings.Contains(h.Missing, "weight: ") && h.Failed == "" && s.limit("first") == 12_000_000
			})
			s.run("sh", "-c", "echo bfq > $0", scheduler)
		}
		s.node(nodes[i], 2+i, mounted+more)
	}
	for node, weight := range map[string]int{"first": 1000, "heavy": 300, "light": 100} {
		s.eventually(node+" weighs what its class and weight make", 5*time.Second, func() bool { return s.weightOf(node) == weight })
	}
	if testkit.Measures() {
		s.parts(nodes)
	}
}

// parts measures what nodes of classes read. In 3 of 46 runs the lightest node had 13 % less than its part, which is not understood yet.
func (s *site) parts(nodes []string) {
	s.t.Helper()
	// All read; the first 3 s are not counted, in which the parts follow the load.
	together := func(seconds int, nodes ...string) map[string]float64 {
		var all sync.WaitGroup
		for _, n := range nodes {
			s.cold(n)
			all.Go(func() {
				s.berth("exec", n, "--", "sh", "-c", fmt.Sprintf("timeout %d dd if=/mnt/%s of=/dev/null bs=256k 2>&1; true", seconds, n))
			})
		}
		time.Sleep(3 * time.Second)
		before, began, got := map[string]uint64{}, time.Now(), map[string]float64{}
		for _, n := range nodes {
			before[n] = s.counted(n)
		}
		time.Sleep(time.Duration(seconds-4) * time.Second)
		took := time.Since(began).Seconds()
		for _, n := range nodes {
			got[n] = float64(s.counted(n)-before[n]) / took / 1e6
		}
		all.Wait()
		s.t.Logf("MB/s: %v", got)
		return got
	}
	check := func(got, want map[string]float64) {
		for n, w := range want {
			if got[n] < 0.9*w || got[n] > 1.1*w {
				s.t.Errorf("%s read %.2f MB/s, want %.1f", n, got[n], w)
			}
		}
	}
	check(together(10, nodes...), map[string]float64{"first": 12, "heavy": 9, "light": 3})
	check(together(10, "heavy", "light"), map[string]float64{"heavy": 18, "light": 6})
}
