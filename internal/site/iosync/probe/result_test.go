package probe

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/sys/refuse"
)

// published makes a folder as berthd publishes it, with groups as plain folders, and looks at it.
func published(t *testing.T) (f *Folder, group func(name string) uint64) {
	t.Helper()
	dir := t.TempDir()
	f = &Folder{Dir: filepath.Join(dir, "shared")}
	groups := filepath.Join(dir, "blkio", "berth.sync", "shared")
	addresses := filepath.Join(f.Dir, "addresses")
	for _, d := range []string{addresses, filepath.Join(groups, "wn-1"), filepath.Join(groups, "wn-2"), filepath.Join(groups, "_server")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		filepath.Join(f.Dir, "groups"): groups, filepath.Join(addresses, "10.0.0.1"): "wn-1", filepath.Join(addresses, "fd00::1"): "wn-1",
		filepath.Join(addresses, "10.0.0.2"): "wn-2", filepath.Join(addresses, "10.0.0.3"): "wn-3", filepath.Join(addresses, ".new"): "wn-4",
	} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Look(); err != nil {
		t.Fatal(err)
	}
	return f, func(name string) uint64 {
		info, err := os.Stat(filepath.Join(groups, name))
		if err != nil {
			t.Fatal(err)
		}
		return inode(info)
	}
}

// TestResult joins counts of every kind, and compares the table for people.
func TestResult(t *testing.T) {
	f, group := published(t)
	addr := netip.MustParseAddr
	sum := func(peer, to string, c Class, by By, bytes uint64) Sum {
		s := Sum{Class: c, By: by, Bytes: bytes, Group: 1 << 40}
		if peer != "" {
			s.Peer = addr(peer)
		}
		if to != "" {
			s.Group = group(to)
		}
		return s
	}
	r := f.Result(Counts{
		Sums: []Sum{
			sum("10.0.0.1", "wn-1", Read, ByThread, 8*mib),
			sum("fd00::1", "wn-1", Read, ByProcess, 2*mib),
			sum("10.0.0.1", "_server", Read, ByThread, 4096),
			sum("10.0.0.1", "wn-2", Write, ByThread, 8192),
			sum("10.0.0.2", "wn-2", Write, ByThread, 3*mib),
			sum("", "wn-2", KernelWrite, ByNone, mib), // held: 10.0.0.2 alone waited
			sum("", "wn-1", KernelRead, ByNone, 5),    // two waited
			sum("", "", KernelWrite, ByNone, 11),      // sync(2)
			sum("", "", Writeback, ByNone, 7*mib),
			sum("", "_server", Journal, ByNone, 12288),
			sum("10.0.0.1", "", Journal, ByThread, 1),
			sum("192.0.2.9", "wn-2", Read, ByThread, 100),
			sum("", "wn-1", Read, BySeveral, 6),
			sum("", "", Write, ByNone, 9),
		},
		Waits: []Wait{
			{Peer: addr("10.0.0.2"), Group: group("wn-2")},
			{Peer: addr("10.0.0.1"), Group: group("wn-1")},
			{Peer: addr("fd00::1"), Group: group("wn-1")},
			{Group: group("wn-1"), By: BySeveral},
		},
		Lost: 2048,
	}, Ways{Receive: "sock_recv_length", Submit: queued})
	r.Server, r.Disk, r.Seconds = "fs1", "8:16", 30
	const want = `shared on fs1, disk 8:16, 30.0 s: 12.0 KiB leaked

NODE       READ      LEAKED   WRITTEN  LEAKED   OF OTHERS
wn-1       10.0 MiB  4.0 KiB  0 B      8.0 KiB  0 B
wn-2       0 B       0 B      4.0 MiB  0 B      8.1 KiB
192.0.2.9  100 B     -        0 B      -        -
            1 node asked for nothing

leak        wn-1: 4096 bytes of its reads, charged to _server
leak        wn-1: 8192 bytes of its writes, charged to wn-2
of others   wn-2: 8292 bytes charged to its group were requests of wn-1 (8192),
            192.0.2.9 (100)
unknown     9 B of threads that received no request; charged to group
            1099511627776
unknown     6 B of threads that received no request, in processes that serve
            several peers; charged to wn-1
unknown     5 B of the kernel's threads; what a limit holds comes from them too,
            while several peers wait in one group; charged to wn-1
writeback   7.0 MiB what was written to memory before: nobody can say for whom;
            charged to group 1099511627776
journal     12.0 KiB the file system's own; charged to _server (12288), group
            1099511627776 (1)
lost        2.0 KiB: there are too many peers and groups to count them all
seen by     sock_recv_length and block_bio_queue
`
	var got strings.Builder
	if err := r.Write(&got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Error(diff)
	}
	if r.Leaked != 12288 || r.Polluted != 8292 || r.Nodes[0].ByProcess != 2*mib || r.Nodes[1].ByGroup != mib {
		t.Errorf("leaked %d, polluted %d, by process %d, by group %d", r.Leaked, r.Polluted, r.Nodes[0].ByProcess, r.Nodes[1].ByGroup)
	}
	b, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(b), `"leaked":{"bytes":8192,"to":{"wn-2":8192}}`) {
		t.Errorf("%s, %v", b, err)
	}
}

func TestNoFolder(t *testing.T) {
	f := Folder{Dir: filepath.Join(t.TempDir(), "shared")}
	if err := f.Look(); refuse.KindOf(err) != refuse.NotFound {
		t.Errorf("a file system that is not served: %v", err)
	}
}
