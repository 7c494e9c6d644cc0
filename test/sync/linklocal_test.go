package sync

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/site/intercept/network"
	"berth/internal/site/intercept/preload"
	"berth/internal/site/iosync/place"
	"berth/internal/sys/layout"
	"berth/internal/sys/mac"
	"berth/test/built"
	"berth/test/testkit"
)

// TestLinkLocal: a node that asks from the IPv6 address which its kernel made of its MAC is held as from the address of its spec, by each
// way. The spec has an IPv4 address alone.
func TestLinkLocal(t *testing.T) {
	needs(t, "python3")
	mostlyWaits(t)
	s := newSite(t, "198.51.119")
	testkit.Must(t, built.Preload(t.Context(), s.dir))
	python, err := exec.LookPath("python3")
	testkit.Must(t, err)
	const shared, atGate, steered, framed = 8201, 8202, 8203, 8204
	s.configure(fmt.Sprintf(`filesystems:
- {name: shared, path: %[1]s, server: xrootd}
- {name: gate, path: %[1]s, server: other, way: gate, port: %[2]d}
- {name: steered, path: %[1]s, server: other, way: instances, port: %[3]d, command: [%[4]s, -m, http.server, --bind, "::", --directory, %[1]s, "{port}"]}
- {name: framed, path: %[1]s, server: other, interface: %[5]s}
`, s.served, atGate, steered, python, s.link))
	s.start()
	const size = 2 << 20
	s.file("data", size)
	entries := "io:\n"
	for _, name := range []string{"shared", "gate", "steered", "framed"} {
		entries += fmt.Sprintf("- {name: %[1]s, filesystem: %[1]s, read: {rate: 50MB/s}}\n", name)
	}
	s.node("n", 2, entries)
	for _, port := range []int{shared, atGate, framed} { // of steered there is no other server than the node's own
		server := exec.Command(python, "-m", "http.server", "--bind", "::", "--directory", s.served, fmt.Sprint(port))
		if port == shared {
			server.Env = append(os.Environ(), "LD_PRELOAD="+filepath.Join(s.dir, preload.Library), "BERTH_SYNC_DIR="+place.Dir(s.layout, "shared"))
		}
		testkit.Must(t, server.Start())
		t.Cleanup(func() { s.end(server, syscall.SIGKILL) })
	}
	bridge, err := os.ReadFile("/sys/class/net/" + s.link + "/address")
	testkit.Must(t, err)
	to := mac.Must(strings.TrimSpace(string(bridge))).LinkLocal()
	s.eventually("the node has its own server", 10*time.Second, func() bool { return inGroup(s.layout, "steered", "n") })
	// get has the node read the file, and says from which address.
	get := func(port int) netip.Addr {
		t.Helper()
		said := s.berth("exec", "n", "--", "python3", "-c", `import socket, sys, time
for again in range(200):
    try:
        c = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
        break
    except OSError as e: # the addresses are tried out at first
        why = e
        time.sleep(0.1)
else:
    sys.exit(str(why))
c.sendall(b"GET /data HTTP/1.0\r\n\r\n")
n = 0
while b := c.recv(1 << 16):
    n += len(b)
assert n > int(sys.argv[3]), n
print(c.getsockname()[0].split("%")[0])`, to.String()+"%eth0", fmt.Sprint(port), fmt.Sprint(size))
		from, err := netip.ParseAddr(strings.TrimSpace(said))
		if err != nil || !from.IsLinkLocalUnicast() {
			t.Errorf("the node asked from %q: %v", said, err)
		}
		return from
	}
	from := get(shared) // when that is answered, both have their addresses
	found, before := s.audit("shared"), s.counted("n")
	s.cold("data")
	get(shared)
	if read := s.counted("n") - before; read < size {
		t.Errorf("preload: %d bytes were read in the group of the node, which asked for %d from %s", read, size, from)
	}
	if own := clean(t, found(), "n"); own < size {
		t.Errorf("preload: the audit saw %d bytes that the node read", own)
	}
	get(atGate)
	if !inGroup(s.layout, "gate", "n") {
		t.Errorf("gate: the server is not in the group of the node, which asked from %s", from)
	}
	get(steered)
	passed := func() (sum uint64) {
		all, wrong, err := network.Read(s.link)
		if err != nil || wrong != "" {
			t.Fatal(wrong, err)
		}
		for _, held := range all {
			sum += held.Passed.Read
		}
		return sum
	}
	sent := passed()
	get(framed)
	if got := passed() - sent; got < size {
		t.Errorf("network: %d bytes passed the class of the node, which asked for %d from %s", got, size, from)
	}
}

// inGroup reports whether a process is in the group of a node on a file system.
func inGroup(l layout.Layout, filesystem, node string) bool {
	text, _ := os.ReadFile(filepath.Join(place.Dir(l, filesystem), "groups", node, "cgroup.procs"))
	return len(text) > 0
}
