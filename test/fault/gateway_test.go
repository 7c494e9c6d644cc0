package fault

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"berth/test/testkit"
)

// remote is a node with a folder of a file server, by sshfs-direct; shared mounts are by one daemon in the host's network.
var (
	remote = node{"sshfs-direct", func(w *world) string {
		w.fileServer("192.0.2.7")
		return `
name: f1
image: host
command: [/bin/sleep, infinity]
network: [{mode: bridge, parent: br9, address: [192.0.2.7/24]}]
mounts: [{source: "192.0.2.1:/", target: /remote, gateway: sshfs-direct}]
`
	}}
	remoteShared = node{"sshfs-direct via host", func(w *world) string {
		w.fileServer("192.0.2.1")
		w.file("root/users.yaml", "allow: [{from: 1500, count: 1}]\n")
		return `
name: f1
image: host
command: [/bin/sleep, infinity]
user: "1500"
users: [{from: 1500, count: 1, as: same}]
mounts: [{source: "192.0.2.1:/", target: /remote, gateway: sshfs-direct, via: host, options: {uid: 1500}}]
`
	}}
)

// fileServer serves a folder at 192.0.2.1 to one client.
func (w *world) fileServer(client string) {
	w.Helper()
	if _, err := exec.LookPath("sshfs"); err != nil {
		w.Skip("no sshfs: install Debian's package sshfs")
	}
	w.bridge()
	dir := w.dir + "/served"
	testkit.Must(w, os.Mkdir(dir, 0o755))
	testkit.Must(w, os.Chown(dir, 65534, 65534))
	server := w.begin(nil, "gateway", "serve", dir, "--user", "nobody", "--allow", client, "--listen", "192.0.2.1:7022")
	w.Cleanup(func() {
		server.kill()
		_ = server.cmd.Wait() // job.wait counts from the start, and the server runs as long as the walk
	})
	if !testkit.Happens(func() bool {
		c, err := net.Dial("tcp", "192.0.2.1:7022")
		if err == nil {
			c.Close()
		}
		return err == nil
	}) {
		w.Fatal("the file server does not listen")
	}
}

// TestRemoteNodeKilledAtEachStep kills apply and rm of a node with a gateway's daemon at each step: the daemon runs while the
// node does, and nothing of it is left, neither here nor at the server.
func TestRemoteNodeKilledAtEachStep(t *testing.T) {
	each(t, []node{remote, remoteShared}, func(s *scene) {
		if up := strings.Join(s.states["up"], "\n"); !strings.Contains(up, "process sshfs -f server:") {
			s.Errorf("a snapshot does not see the daemon:\n%s", up)
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
	})
}
