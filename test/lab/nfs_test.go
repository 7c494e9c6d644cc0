package lab_test

import (
	"fmt"
	"strings"
	"testing"

	"berth/test/lab"
)

// serveNFS makes a machine a file server at 192.0.2.1, which exports the file system of its disk. A short lease keeps the wait
// after a crash short.
func serveNFS(t *testing.T, m *lab.VM, format bool) {
	t.Helper()
	if format {
		m.OK(t, "mkfs.ext4 -q /dev/vdb")
	}
	m.OK(t, `mkdir -p /srv; mount /dev/vdb /srv; mkdir -p /srv/all /srv/root; chmod 1777 /srv/all; chmod 700 /srv/root
printf '[nfsd]\ngrace-time=10\nlease-time=10\nthreads=8\n' >/etc/nfs.conf
echo '/srv 192.0.2.0/24(rw,sync,no_root_squash,no_subtree_check,insecure)' >/etc/exports
modprobe igb; udevadm settle; n=$(basename /sys/class/net/e*); ip link set $n up; ip addr add 192.0.2.1/24 dev $n
systemctl start nfs-server`)
}

// nfsLab starts a host of nodes and a file server with a cable between them. It returns them and the host's adapter.
func nfsLab(t *testing.T) (host, server *lab.VM, adapter string) {
	t.Helper()
	nics := []lab.NIC{{Segment: "wire"}}
	l := lab.Start(t, lab.Options{Machines: []lab.Machine{
		{CPUs: 2, Memory: 1536, NICs: nics}, {CPUs: 1, Memory: 768, NICs: nics, Disks: []lab.Disk{{Size: 512 << 20}}},
	}})
	host, server = l.VM(0), l.VM(1)
	install(t, host)
	serveNFS(t, server, true)
	adapter = host.OK(t, "n=$(basename /sys/class/net/e*); ip link set $n up; ip addr add 192.0.2.2/24 dev $n; echo $n")
	return host, server, adapter
}

// nfsNode is the spec of a node on the server's network, with mounts.
func nfsNode(name, adapter string, address int, mounts ...string) string {
	text := fmt.Sprintf("name: %s\nimage: host\ncommand: [sleep, infinity]\nstop: {grace: 1s}\nnetwork: [{mode: macvlan, parent: %s, address: [192.0.2.%d/24]}]\n", name, adapter, address)
	if len(mounts) > 0 {
		text += "mounts:\n"
	}
	for _, m := range mounts {
		text += "  - " + m + "\n"
	}
	return text
}

const (
	viaNode = `{source: "192.0.2.1:/srv", target: /mnt, gateway: nfs}`
	viaHost = `{source: "192.0.2.1:/srv", target: /media, gateway: nfs, via: host}`
)

// TestNFS: nodes use a file server of another machine by NFS. The server sees whose files they write, and one client a node or
// one a host. A node cannot speak NFS itself.
func TestNFS(t *testing.T) {
	t.Parallel()
	host, server, adapter := nfsLab(t)
	clients := func() string { return server.OK(t, "ls /proc/fs/nfsd/clients | wc -l") }
	before := host.OK(t, "wc -l </proc/self/mountinfo")

	t.Run("owners", func(t *testing.T) {
		node(t, host, nfsNode("one", adapter, 11, viaNode, viaHost))
		if out := host.OK(t, "berth exec one -- grep nfs4 /proc/mounts"); strings.Count(out, "vers=4.2") != 2 || strings.Count(out, "nosuid,nodev") != 2 {
			t.Errorf("the node's mounts: %s", out)
		}
		if out := host.OK(t, "grep nfs4 /proc/mounts || true"); out != "" {
			t.Errorf("the host sees %s", out)
		}
		host.OK(t, `for u in 0 1500; do berth exec --user $u one -- sh -c "echo x >/mnt/all/node.$u; echo x >/media/all/host.$u"; done
! berth exec one -- touch /mnt/root/x 2>/dev/null; ! berth exec one -- ls /media/root 2>/dev/null; ! berth exec one -- chown 5:5 /mnt/all/node.0 2>/dev/null`)
		var first int
		if _, err := fmt.Sscan(strings.Split(show(t, host, "one").IDs, "-")[0], &first); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("host.0 %d\nhost.1500 %d\nnode.0 %d\nnode.1500 %d", first, first+1500, first, first+1500)
		if got := server.OK(t, "cd /srv/all; stat -c '%n %u' *"); got != want {
			t.Errorf("owners on the server:\n%s\nwant\n%s", got, want)
		}
		if n := clients(); n != "2" {
			t.Errorf("one node with a mount of each kind is %s clients", n)
		}
		// A file that is open stays usable after a change of user, as on any client.
		host.OK(t, `berth exec one -- bash -ec 'umask 077; echo private >/mnt/all/open; exec 5</mnt/all/open 6>>/mnt/all/open
setpriv --reuid 1501 --clear-groups bash -ec "read x <&5; [ \$x = private ]; echo more >&6; ! cat /mnt/all/open 2>/dev/null"
grep -q more /mnt/all/open'`)

		// The same program reaches the server from a node without a mount, at an address that the server trusts as much.
		node(t, host, nfsNode("free", adapter, 12))
		const ask = "timeout 10 nfs-ls 'nfs://192.0.2.1/srv/all?version=4'"
		host.OK(t, "berth exec free -- "+ask)
		for _, uid := range []string{"0", "1501"} {
			if r := host.Run(t, "bash", "-c", "berth exec --user "+uid+" one -- "+ask); r.Code == 0 {
				t.Errorf("uid %s in the node speaks NFS itself: %s", uid, r.Out)
			}
		}
		host.OK(t, "berth exec one -- grep -q x /mnt/all/node.0")
	})
	// The owners are those of the table in docs/gateways.md.
	t.Run("users of a site", func(t *testing.T) {
		host.OK(t, "mkdir -p /etc/berth /srv/bound; chmod 1777 /srv/bound; echo 'allow: [{from: 1500, count: 1}, {from: 70000, count: 100}]' >/etc/berth/users.yaml")
		node(t, host, nfsNode("site", adapter, 14, viaNode, "{source: /srv/bound, target: /opt}")+"users: [{from: 1500, count: 1, as: same}, {from: 70000, count: 100, as: same}]\n")
		host.OK(t, `for u in 0 1500 70001; do berth exec --user $u:$u site -- sh -c "echo x >/mnt/all/site.$u; echo x >/opt/site.$u"; done`)
		var first int
		if _, err := fmt.Sscan(strings.Split(show(t, host, "site").IDs, "-")[0], &first); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("site.0 %d %[1]d\nsite.1500 1500 1500\nsite.70001 70001 70001", first)
		if got := server.OK(t, "cd /srv/all; stat -c '%n %u %g' site.*"); got != want {
			t.Errorf("owners on the server:\n%s\nwant\n%s", got, want)
		}
		const bound = "site.0 0 0\nsite.1500 1500 1500\nsite.70001 70001 70001"
		if got := host.OK(t, "cd /srv/bound; stat -c '%n %u %g' site.*"); got != bound {
			t.Errorf("owners through bind:\n%s\nwant\n%s", got, bound)
		}
		// Private files of another user stay closed; a user outside the map cannot be, even for root inside.
		server.OK(t, "echo private >/srv/all/closed; chown 70001 /srv/all/closed; chmod 600 /srv/all/closed")
		host.OK(t, "berth exec --user 70001 site -- grep -q private /mnt/all/closed; ! berth exec --user 1500 site -- cat /mnt/all/closed 2>/dev/null")
		for _, does := range []string{"setpriv --reuid 69999 --clear-groups touch /mnt/all/other", "chown 69999 /mnt/all/site.1500", "chown 69999 /opt/site.0"} {
			if r := host.Run(t, append([]string{"berth", "exec", "site", "--"}, strings.Fields(does)...)...); r.Code == 0 || !strings.Contains(r.Err, "nvalid argument") {
				t.Errorf("%s: exit code %d: %s", does, r.Code, r.Err)
			}
		}
		if r := host.Run(t, "berth", "exec", "--user", "69999", "site", "--", "touch", "/mnt/all/other"); r.Code != 125 {
			t.Errorf("exec as user 69999: exit code %d: %s", r.Code, r.Err)
		}
	})
	t.Run("refused", func(t *testing.T) {
		for _, c := range []struct {
			source string
			code   int
			text   string
		}{
			{"192.0.2.1:/none", 4, "exports no such folder"},
			{"192.0.2.99:/srv", 1, "reach file server"},
			{"server.invalid:/srv", 3, "is not known"},
		} {
			spec := nfsNode("bad", adapter, 13, strings.ReplaceAll(viaNode, "192.0.2.1:/srv", c.source))
			host.Write(t, "/root/bad.yaml", spec)
			if r := host.Run(t, "berth", "apply", "-f", "/root/bad.yaml"); r.Code != c.code || !strings.Contains(r.Err, c.text) {
				t.Errorf("%s: exit code %d: %s", c.source, r.Code, r.Err)
			}
		}
	})
	t.Run("clients", func(t *testing.T) {
		var specs []string
		for i := range 20 {
			specs = append(specs, nfsNode(fmt.Sprintf("n%d", i), adapter, 20+i, viaNode, viaHost))
		}
		nodes(t, host, specs...)
		if n := clients(); n != "21" {
			t.Errorf("20 nodes with via: node and via: host are %s clients, want 20 and 1", n)
		}
		names := server.OK(t, "cat /proc/fs/nfsd/clients/*/info | grep ^name | grep -o 'berth-n[0-9]*-' | sort -u | wc -l")
		if names != "20" {
			t.Errorf("%s names of clients", names)
		}
	})
	if after := host.OK(t, "wc -l </proc/self/mountinfo; ls /run/berth/gateways 2>/dev/null || true"); after != before {
		t.Errorf("mounts of the host: %s before, %s after", before, after)
	}
}
