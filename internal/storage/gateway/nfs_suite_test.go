//go:build nfslab

// The tests of this file need an NFS server of their own: TestNFSSuite in test/lab builds them and runs them in a machine.

package gateway_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"berth/internal/spec/vnode"
	"berth/internal/storage/gateway"
	"berth/internal/storage/gateway/gatewaytest"
	"berth/internal/sys/quota"
	"berth/internal/sys/refuse"
)

// nfsServer is what the machine has prepared: a server, which the environment names, at this address on the bridge nfs0 exports /srv,
// and /small, which has room for less than 16 MiB.
const nfsServer = "192.0.2.1"

// TestNFSSuite runs the suite on NFS of a server on the same machine; each node has a network of its own.
func TestNFSSuite(t *testing.T) {
	nodes := 10
	in := func(t *testing.T, top string) gatewaytest.Source {
		s := gatewaytest.FolderIn(t, top)
		for _, path := range []string{"", "/file", "/beneath"} { // root inside is this user on the wire
			if err := os.Chown(s.Dir+path, gatewaytest.Root, gatewaytest.Root); err != nil {
				t.Fatal(err)
			}
		}
		s.Name, s.Owner, s.Beneath = nfsServer+":"+s.Dir, gatewaytest.Root, nil
		return s
	}
	many, _ := strconv.Atoi(os.Getenv("NFS_KEPT"))
	gatewaytest.Suite{
		Gateway: gateway.NFS{}, Files: 500, Kept: many,
		Source: func(t *testing.T) gatewaytest.Source { return in(t, "/srv") },
		Small:  func(t *testing.T) gatewaytest.Source { return in(t, "/small") },
		Quota: func(t *testing.T) gatewaytest.Source {
			s := in(t, "/srv")
			dir, err := os.Open(s.Dir)
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			if err := errors.Join(quota.SetProject(dir, 77), quota.Limit(dir, 77, 4<<20)); err != nil {
				t.Fatal(err)
			}
			return s
		},
		Connect: func(t *testing.T, pid int) {
			nodes++
			run(t, fmt.Sprintf("ip link add v%d type veth peer name eth0 netns %d; ip link set v%[1]d master nfs0 up; nsenter -t %[2]d -n sh -ec 'ip addr add 192.0.2.%[1]d/24 dev eth0; ip link set eth0 up; ip link set lo up'", nodes, pid))
		},
		Restart: func(t *testing.T) { run(t, "systemctl restart "+os.Getenv("NFS_SERVICE")) },
	}.Run(t)
	if os.Getenv("NFS_SERVICE") == "nfs-ganesha" {
		t.Run("NFS 4.2 of NFS-Ganesha", func(t *testing.T) {
			s := in(t, "/srv")
			s.Options = vnode.Options{"vers": "4.2"}
			if err := gatewaytest.Refused(t, gateway.NFS{}, s); refuse.KindOf(err) != refuse.Cannot || !strings.Contains(fmt.Sprint(err), "zeros") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func run(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", script, err, strings.TrimSpace(string(out)))
	}
}
