package fault

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// remote is a node with a folder of a file server, by sshfs-direct.
var remote = node{"sshfs-direct", func(w *world) string {
	if _, err := exec.LookPath("sshfs"); err != nil {
		w.Skip("no sshfs: install Debian's package sshfs")
	}
	w.bridge()
	dir := w.dir + "/served"
	w.must(os.Mkdir(dir, 0o755))
	w.must(os.Chown(dir, 65534, 65534))
	server := w.begin(nil, "gateway", "serve", dir, "--user", "nobody", "--allow", "192.0.2.7", "--listen", "192.0.2.1:7022")
	w.Cleanup(func() {
		server.kill()
		server.wait()
	})
	if !eventually(patience, func() bool {
		c, err := net.Dial("tcp", "192.0.2.1:7022")
		if err == nil {
			c.Close()
		}
		return err == nil
	}) {
		w.Fatal("the file server does not listen")
	}
	return `
name: f1
image: host
command: [/bin/sleep, infinity]
network: [{mode: bridge, parent: br9, address: [192.0.2.7/24]}]
mounts: [{source: "192.0.2.1:/", target: /remote, gateway: sshfs-direct}]
`
}}

// TestRemoteNodeKilledAtEachStep kills apply and rm of a node with a gateway's daemon at each step: the daemon runs while the
// node does, and nothing of it is left, neither here nor at the server.
func TestRemoteNodeKilledAtEachStep(t *testing.T) {
	s := newScene(t, remote)
	if up := strings.Join(s.states["up"], "\n"); !strings.Contains(up, "process sshfs -f server:") {
		t.Errorf("a snapshot does not see the daemon:\n%s", up)
	}
	for _, args := range [][]string{{"apply", "-f", s.spec}, {"rm", "--force", "f1"}} {
		s.steps(func(n int) bool {
			if args[0] == "rm" {
				s.ok("apply", "-f", s.spec)
			}
			what, killed := s.point(n, args...)
			if killed {
				s.repaired(what, "none", "up")
			}
			s.works(what)
			return killed
		})
	}
}
