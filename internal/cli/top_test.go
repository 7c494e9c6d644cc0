package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"berth/internal/node"
)

// sampleOfThree returns a sample of a storage node, a batch node and a protected service.
func sampleOfThree() *node.Sample {
	waits := func(cpu, memory, io float64) *node.PressureUse {
		return &node.PressureUse{CPU: &node.StallUse{Some: new(cpu)}, Memory: &node.StallUse{Some: new(memory)}, IO: &node.StallUse{Some: new(io)}}
	}
	return &node.Sample{
		Time: time.Date(2026, 1, 2, 14, 3, 22, 0, time.UTC), Interval: 2 * time.Second,
		Host: node.HostUse{CPUs: 2, CPU: new(37.4), Memory: 5 << 30, MemoryTotal: 8 << 30, Pressure: waits(9, 0, 12.3)},
		Nodes: []node.Use{
			{
				Name: "wn-001", Kind: node.KindNode, CPU: new(100.4), Throttled: new(48.0), Memory: new(int64(96 << 20)), MemoryMax: new(int64(4 << 30)),
				PIDs: new(int64(12)), Pressure: waits(12, 0, 100), Links: []node.LinkUse{{Link: "eth0", RXBits: 954e6, TXBits: 12e3}},
				Disks: []node.DiskUse{
					{Disk: "nvme0n1", ReadBytes: 25.3e6, ReadOps: 6176, WriteBytes: 4096, WriteOps: 1, Waited: new(3.25)},
					{Disk: "sda"},
				},
			},
			{
				Name: "a-rather-long-name-of-a-worker-7", Kind: node.KindNode, CPU: new(0.02), Throttled: new(0.0), Memory: new(int64(4096)), PIDs: new(int64(1)),
				Pressure: waits(0, 0, 0), Disks: []node.DiskUse{},
				Links: []node.LinkUse{{Link: "eth0", RXBits: 8, RXPackets: 1}, {Link: "eth1"}},
			},
			{Name: "xrootd", Kind: node.KindService, CPU: new(3.2), Memory: new(int64(1 << 30)), Disks: []node.DiskUse{}},
		},
	}
}

func TestTopLines(t *testing.T) {
	for _, tt := range []struct {
		view topView
		want string
	}{
		{topView{width: 80, sort: "cpu", details: true}, `
14:03:22  2 nodes, 1 service by cpu, over 2.0 s
host  CPU 37% of 200%  memory 5.0Gi of 8.0Gi  waits cpu 9.0% mem 0% io 12%

NAME               CPU% THR% MEMORY    MAX cpu mem  io READ/s WRIT/s RXbit TXbit
wn-001              100   48 96.0Mi  4.0Gi  12   0 100  25.3M   4.1k  954M 12.0k
  nvme0n1: read 25.3MB/s 6.2k IOPS, write 4.1kB/s 1 IOPS, held back 3.2%
xrootd (service)    3.2    -  1.0Gi      -   -   -   -      0      0     -     -
…me-of-a-worker-7     0    0  4.0Ki      -   0   0   0      0      0     8     0
  eth0: rx 8bit/s 1 packets/s, tx 0bit/s 0 packets/s
  eth1: rx 0bit/s 0 packets/s, tx 0bit/s 0 packets/s`},
		{topView{width: 40, height: 6, sort: "name"}, `
14:03:22  2 nodes, 1 service by name, ov
host  CPU 37% of 200%  memory 5.0Gi of 8

NAME                         CPU% MEMORY
…er-long-name-of-a-worker-7     0  4.0Ki
wn-001                        100 96.0Mi`},
		{topView{sort: "net", first: 1}, `
14:03:22  2 nodes, 1 service by net, over 2.0 s
host  CPU 37% of 200%  memory 5.0Gi of 8.0Gi  waits cpu 9.0% mem 0% io 12%

NAME                              CPU% THR% MEMORY    MAX cpu mem  io READ/s WRIT/s R-IOPS W-IOPS RXbit TXbit TASKS
a-rather-long-name-of-a-worker-7     0    0  4.0Ki      -   0   0   0      0      0      0      0     8     0     1
xrootd (service)                   3.2    -  1.0Gi      -   -   -   -      0      0      0      0     -     -     -`},
	} {
		got := "\n" + strings.Join(topLines(sampleOfThree(), tt.view), "\n")
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%+v: %s", tt.view, diff)
		}
	}
	none := &node.Sample{Nodes: []node.Use{}}
	if got := topLines(none, topView{width: 80, sort: "cpu"}); got[len(got)-1] != "no node runs" {
		t.Errorf("without nodes: %q", got)
	}
}

// TestTopFits checks that no line is wider than the terminal and no figure touches the one before it.
func TestTopFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := sampleOfThree()
		u := &s.Nodes[0]
		u.Name = rapid.StringMatching("[a-z0-9-]{1,48}").Draw(t, "name")
		u.CPU = new(rapid.Float64Range(0, 12800).Draw(t, "cpu"))
		u.Memory = new(rapid.Int64Range(0, 1<<50).Draw(t, "memory"))
		u.Disks[0].ReadBytes = rapid.Float64Range(0, 1e13).Draw(t, "read")
		u.Links[0].TXBits = rapid.Float64Range(0, 1e12).Draw(t, "tx")
		v := topView{
			width: rapid.IntRange(20, 150).Draw(t, "width"), height: rapid.IntRange(1, 30).Draw(t, "height"),
			sort: rapid.SampledFrom(topSorts()).Draw(t, "sort"), details: rapid.Bool().Draw(t, "details"),
		}
		lines := topLines(s, v)
		if len(lines) > v.height {
			t.Fatalf("%d lines in a height of %d", len(lines), v.height)
		}
		for _, l := range lines {
			if n := utf8.RuneCountInString(l); n > v.width {
				t.Fatalf("%d wide, want at most %d: %s", n, v.width, l)
			}
		}
		columns, _ := fitColumns(s.Nodes, 0)
		for _, c := range columns {
			if f := c.value(u); f != nil && len(c.text(*f)) >= c.width {
				t.Fatalf("%s: %q does not leave a space in %d", c.head, c.text(*f), c.width)
			}
		}
	})
}

// terminal opens both ends of a pseudo-terminal.
func terminal(t *testing.T) (end, tty *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("no /dev/ptmx: ", err)
	}
	end = os.NewFile(uintptr(fd), "ptmx")
	t.Cleanup(func() { end.Close() })
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80})
	}
	if err == nil {
		tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return end, tty
}

// TestTopGivesTheTerminalBack checks that q and an interrupt restore the terminal.
func TestTopGivesTheTerminalBack(t *testing.T) {
	for _, how := range []string{"q", "interrupt"} {
		t.Run(how, func(t *testing.T) {
			end, tty := terminal(t)
			before, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			code := make(chan int)
			go func() {
				code <- Main(ctx, []string{"top", "--root", t.TempDir()}, Streams{In: tty, Out: tty, Err: tty})
			}()
			seen := readUntil(t, end, "q quit")
			if !strings.Contains(seen, enterScreen) || !strings.Contains(seen, "no node runs") {
				t.Errorf("drawn: %q", seen)
			}
			if during, _ := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS); during.Lflag&unix.ECHO != 0 {
				t.Error("keys are shown in the table")
			}
			if how == "q" {
				if _, err := end.WriteString("dmj\x1b[Bq"); err != nil {
					t.Fatal(err)
				}
			} else {
				cancel()
			}
			readUntil(t, end, leaveScreen)
			if c := <-code; c != 0 {
				t.Errorf("exit code %d", c)
			}
			after, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
			if diff := cmp.Diff(before, after); diff != "" || err != nil {
				t.Errorf("the terminal is not as it was: %v %s", err, diff)
			}
		})
	}
}

func readUntil(t *testing.T, from *os.File, what string) string {
	t.Helper()
	var all bytes.Buffer
	buf := make([]byte, 4096)
	for !strings.Contains(all.String(), what) {
		n, err := from.Read(buf)
		if err != nil {
			t.Fatalf("%v after %q", err, all.String())
		}
		all.Write(buf[:n])
	}
	return all.String()
}

// TestTopStreams checks that top prints as many tables or objects as asked for.
func TestTopStreams(t *testing.T) {
	var out, stderr bytes.Buffer
	top := func(args ...string) int {
		out.Reset()
		return Main(t.Context(), append([]string{"top", "--root", t.TempDir(), "-i", "100ms"}, args...), Streams{In: os.Stdin, Out: &out, Err: &stderr})
	}
	if code := top("-n", "2"); code != 0 || strings.Count(out.String(), "no node runs\n") != 2 || strings.Contains(out.String(), "\x1b") {
		t.Errorf("exit %d, %q", code, out.String())
	}
	if code := top("-n", "2", "--json"); code != 0 {
		t.Errorf("exit %d, %q", code, stderr.String())
	}
	for d := json.NewDecoder(&out); d.More(); {
		var s node.Sample
		if err := d.Decode(&s); err != nil || s.Interval <= 0 || s.Host.CPU == nil {
			t.Errorf("%v, %+v", err, s)
		}
	}
	for args, want := range map[string]string{"--sort size": "one of cpu, memory", "-i 1ms": "at least 100ms", "-n -1": "above 0"} {
		stderr.Reset()
		if code := top(strings.Fields(args)...); code != 2 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: exit %d, %q", args, code, stderr.String())
		}
	}
	if code := top("nobody"); code != 4 {
		t.Errorf("a node that is not there: exit %d", code)
	}
}
