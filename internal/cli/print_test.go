package cli

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"berth/internal/cgroup"
	"berth/internal/layout"
	"berth/internal/link"
	"berth/internal/node"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares text with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update writes it anew):\n%s", path, diff)
	}
}

func ptr[T any](v T) *T { return new(v) }

func proposal() *node.Proposal {
	const disk = "acts on the whole disk vda (/var/tmp is on vda1)"
	return &node.Proposal{
		Node: "worker", Does: "create",
		Steps: []node.Line{
			{Kind: "ids.claim", Text: "65536 ids of the host for worker, the same at every start"},
			{Kind: "image.delta", Text: "/var/lib/berth/nodes/worker/delta for the node's writes, without a limit"},
			{Kind: "image.skeleton", Text: "/var/lib/berth/nodes/worker/delta/root, an empty root for the host's programs"},
			{Kind: "oci.bundle", Text: `/run/berth/nodes/worker/bundle/config.json: 11 capabilities, 9 mounts, command ["/bin/sleep" "infinity"]`},
			{Kind: "cgroup.limit", Text: "cpu.max 1.5 → cpu.cfs_period_us=100000 cpu.cfs_quota_us=150000"},
			{Kind: "cgroup.limit", Text: "io.data.read.rate 200MB/s → blkio.throttle.read_bps_device=254:0 200000000", Note: disk},
			{Kind: "cgroup.limit", Text: "io.data.write.rate 100MB/s → blkio.throttle.write_bps_device=254:0 100000000", Note: disk + "; cgroup v1 limits direct writes only, not those through the page cache"},
			{Kind: "oci.start", Text: "crun start worker: /bin/sleep infinity"},
		},
	}
}

func TestPlanIsPrinted(t *testing.T) {
	dirs := layout.New("").Node("worker")
	for file, width := range map[string]int{"plan-80.txt": 80, "plan-file.txt": 0} {
		var b bytes.Buffer
		printProposal(&b, width, proposal(), dirs)
		golden(t, file, b.String())
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(line) - 1; width > 0 && n > width {
				t.Errorf("a line is %d wide, of %d: %s", n, width, line)
			}
		}
	}
	var b bytes.Buffer
	printProposal(&b, 80, &node.Proposal{
		Node: "worker", Does: "restart",
		Drift: []vnode.Difference{{Key: "cpu.max", Old: "1.5", New: "1", Live: true}},
		Differences: []vnode.Difference{
			{Key: "cpu.max", Old: "1", New: "1.5", Live: true}, {Key: "hostname", Old: "worker", New: "w1.example.org"},
		},
		Steps: []node.Line{{Kind: "oci.start", Text: "crun start worker: /bin/sleep infinity"}},
	}, dirs)
	printProposal(&b, 80, &node.Proposal{Node: "other", Does: "nothing"}, dirs)
	golden(t, "plan-change.txt", b.String())
}

func TestShowIsPrinted(t *testing.T) {
	var b bytes.Buffer
	err := printDetail(&b, 80, &node.Detail{
		Status: node.Status{
			Name: "worker", State: node.Running, PID: 4711, Started: time.Now().Add(-90 * time.Second), Image: "host",
			Runtime: "crun 1.8.1", UserNS: true, Restarts: 1,
		},
		Hostname: "worker.example.org", Phase: "up", Command: []string{"/bin/sh", "-c", "echo it's me", ""},
		IDs: "1109852160-1109917695", Cgroup: "berth/worker",
		Links: []node.LinkDetail{{Mode: "bridge", State: link.State{
			Name: "eth0", MAC: "46:26:b8:74:83:91", MTU: 1500, Address: []string{"192.0.2.10/24", "2001:db8::10/64"},
		}, Lease: &node.LeaseDetail{Server: "192.0.2.1", Ends: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)}}},
		Limits: []cgroup.Shown{
			{Key: "cpu.max", Asked: "1.5", ReadBack: "1.5", HonouredBy: "cfs quota", Holds: true},
			{Key: "memory.max", Asked: "1GiB", ReadBack: "2GiB", HonouredBy: "memory.limit_in_bytes"},
			{Key: "io.data.read.rate", Asked: "200MB/s", ReadBack: "200MB/s", HonouredBy: "blkio.throttle", Holds: true, Note: "acts on the whole disk vda (/var/tmp is on vda1)"},
			{Key: "io.data.write.rate", Asked: "100MB/s", ReadBack: "100MB/s", HonouredBy: "blkio.throttle", Holds: true, Note: "acts on the whole disk vda (/var/tmp is on vda1); cgroup v1 limits direct writes only, not those through the page cache"},
		},
		Usage: &cgroup.Usage{Memory: new(int64(5 << 20)), OOMKills: new(int64(1)), PIDs: new(int64(1)), CPU: ptr(1500 * time.Millisecond)},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.WriteString("\n")
	err = printDetail(&b, 80, &node.Detail{
		Status:   node.Status{Name: "old", State: node.Exited, Image: "oci:busybox", Exit: &node.Exit{Code: 137, Signal: "SIGKILL", OOM: true}},
		Hostname: "old", Phase: "down", IDs: "none: root inside is root outside", Cgroup: "berth/old",
		Limits: []cgroup.Shown{{Key: "pids", Asked: "512", HonouredBy: "pids.max", Holds: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "show.txt", b.String())
}

func TestListIsPrinted(t *testing.T) {
	var b bytes.Buffer
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d - 100*time.Millisecond) }
	err := printList(&b, []node.Status{
		{Name: "a", State: node.Running, PID: 4711, Started: ago(5 * time.Second), Image: "host", UserNS: true, Addresses: []string{"192.0.2.10/24", "2001:db8::10/64"}},
		{Name: "b", State: node.Exited, Ended: ago(3 * time.Hour), Image: "oci-layout:/srv/images/a-long-way-down", UserNS: true, Exit: &node.Exit{Code: 1}},
		{Name: "c", State: node.Stopped, Ended: ago(50 * time.Hour), Image: "dir:/srv/root", Exit: &node.Exit{Code: 143, Signal: "SIGTERM"}},
		{Name: "d", State: "creating", UserNS: true},
	}, []node.Protected{
		{Name: "xrootd.service", Since: ago(time.Minute), PIDs: []int{812, 813}},
		{Name: "4712", Since: ago(time.Hour), Gone: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "ls.txt", b.String())
}

func TestOutcomeAndSetArePrinted(t *testing.T) {
	var b bytes.Buffer
	printOutcome(&b, &node.Outcome{Node: "a", Did: "created"})
	printOutcome(&b, &node.Outcome{Node: "b", Did: "changed", Changes: []vnode.Difference{
		{Key: "cpu.max", Old: "1", New: "1.5", Live: true}, {Key: "pids", Old: "512", Live: true},
	}})
	if err := printSet(&b, 80, []node.SetResult{
		{Key: "cpu.max", Asked: "1.005", ReadBack: "1", By: "cfs quota"}, {Key: "memory.max", Asked: "2GiB"},
	}); err != nil {
		t.Fatal(err)
	}
	golden(t, "apply-set.txt", b.String())
}

// TestRowsFit checks that a table fits its width, and that a first cell that is too long stands above its line.
func TestRowsFit(t *testing.T) {
	rows := [][]string{{"LIMIT", "ASKED", "BY"}, {"io.a-long-name-of-a-disk.read.rate", "200MB/s", "io.max"}, {"pids", "5", ""}}
	for width, want := range map[int]string{
		0:  "LIMIT                               ASKED    BY\nio.a-long-name-of-a-disk.read.rate  200MB/s  io.max\npids                                5\n",
		51: "LIMIT                               ASKED    BY\nio.a-long-name-of-a-disk.read.rate  200MB/s  io.max\npids                                5\n",
		40: "LIMIT                    ASKED    BY\nio.a-long-name-of-a-disk.read.rate\n                         200MB/s  io.max\npids                     5\n",
		20: "LIMIT             ASKED    BY\nio.a-long-name-of-a-disk.read.rate\n                  200MB/s  io.max\npids              5\n",
	} {
		var b bytes.Buffer
		if err := printRows(&b, width, rows); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, b.String()); diff != "" {
			t.Errorf("%d columns: %s", width, diff)
		}
	}
}

// TestErrorsAreSentences checks that each error has its own line and each line begins with the program's name.
func TestErrorsAreSentences(t *testing.T) {
	var b bytes.Buffer
	printError(&b, refuse.Join([]error{refuse.NotFoundf("no node a; berth ls lists the nodes"), errors.New("b: a\nc: d")}))
	if diff := cmp.Diff("berth: no node a; berth ls lists the nodes\nberth: b: a\nberth: c: d\n", b.String()); diff != "" {
		t.Error(diff)
	}
}

func TestWrap(t *testing.T) {
	for _, tt := range []struct {
		width      int
		head, text string
		want       string
	}{
		{0, "a: ", strings.Repeat("word ", 30), "a: " + strings.TrimRight(strings.Repeat("word ", 30), " ") + "\n"},
		{20, "a: ", "one two three four five", "a: one two three\n  four five\n"},
		{20, "a: ", "one /a/path/that/is/longer/than/the/line two", "a: one\n  /a/path/that/is/longer/than/the/line\n  two\n"},
		{20, "a: ", "äöü äöü äöü äöü äöü", "a: äöü äöü äöü äöü\n  äöü\n"},
		{20, "a: ", "", "a:\n"},
		{20, "a: ", "two  spaces", "a: two  spaces\n"},
	} {
		var b bytes.Buffer
		wrap(&b, tt.width, 2, tt.head, tt.text)
		if diff := cmp.Diff(tt.want, b.String()); diff != "" {
			t.Errorf("wrap %q to %d:\n%s", tt.text, tt.width, diff)
		}
	}
}
