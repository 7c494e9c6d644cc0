//go:build nfslab

// The tests of this file need an NFS server of their own: TestNFSSuite in test/lab builds them and runs them in a machine.

package gateway_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"berth/internal/gateway"
	"berth/internal/gateway/gatewaytest"
)

// nfsServer is what the machine has prepared: the kernel's server, at this address on the bridge nfs0, exports /srv.
const nfsServer = "192.0.2.1"

// TestNFSSuite runs the suite on NFS of a server on the same machine; each node has a network of its own.
func TestNFSSuite(t *testing.T) {
	nodes := 10
	exported := func(t *testing.T) gatewaytest.Source {
		s := gatewaytest.FolderIn(t, "/srv")
		for _, path := range []string{"", "/file", "/beneath"} { // root inside is this user on the wire
			if err := os.Chown(s.Dir+path, gatewaytest.Root, gatewaytest.Root); err != nil {
				t.Fatal(err)
			}
		}
		s.Name, s.Owner, s.Beneath = nfsServer+":"+s.Dir, gatewaytest.Root, nil
		return s
	}
	// Without Small: that a full disk is told was seen (docs/gateways.md), and what is written after a removal is not settled.
	gatewaytest.Suite{
		Gateway: gateway.NFS{}, Source: exported, Files: 500,
		Connect: func(t *testing.T, pid int) {
			nodes++
			run(t, fmt.Sprintf("ip link add v%d type veth peer name eth0 netns %d; ip link set v%[1]d master nfs0 up; nsenter -t %[2]d -n sh -ec 'ip addr add 192.0.2.%[1]d/24 dev eth0; ip link set eth0 up; ip link set lo up'", nodes, pid))
		},
		Restart: func(t *testing.T) { run(t, "systemctl restart nfs-server") },
	}.Run(t)
}

func run(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", script, err, strings.TrimSpace(string(out)))
	}
}
