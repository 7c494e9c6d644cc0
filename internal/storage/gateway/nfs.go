package gateway

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/host/group"
	"berth/internal/host/netif"
	"berth/internal/spec/vnode"
	"berth/internal/storage/mounts"
	"berth/internal/storage/portblock"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// NFS mounts the export of a file server with the kernel's NFS client.
//
// With via: node the client works in the node's network namespace: the server sees the node's address, and the limits of the
// node's links hold. With via: host one mount in the host's network serves all nodes that name the same source and options. In
// either case no program of the host sees the mount (mounts.Hold), and a port block (package portblock) keeps the node's own
// processes from the server's port.
//
// Ids go over the wire as the host has them: those of the node's own range, and those of extents of the host.
type NFS struct{}

// nfsPort is the port of NFS.
const nfsPort = 2049

// Look finds the address of the server. Whether the server exports the path is known when it is mounted: the node's network,
// through which it is reached, comes with the node.
func (NFS) Look(ctx context.Context, m vnode.Mount, to Node) (Source, error) {
	host, path, err := vnode.ParseRemote(m.Source)
	if err != nil {
		return Source{}, refuse.Invalidf("source of mount %s: %w", m.Target, err)
	}
	if !to.UserNS {
		return Source{}, refuse.Cannotf("leave out user_namespace: false, or mount it on the host and use gateway: bind",
			"mount %s: without a user namespace the node's root is the host's, and cannot be kept from the file server", m.Target)
	}
	if err := canNFS("/"); err != nil {
		return Source{}, fmt.Errorf("mount %s: %w", m.Target, err)
	}
	addr, err := resolve(ctx, host)
	if err != nil {
		return Source{}, refuse.Cannotf("write the server's address, or repair name resolution on the host (getent hosts "+host+")",
			"mount %s: the address of file server %s is not known: %w", m.Target, host, err)
	}
	return Source{Path: path, FSType: "nfs4", Server: addr}, nil
}

// canNFS refuses a kernel without an NFS client. root is the host's.
func canNFS(root string) error {
	if text, err := os.ReadFile(filepath.Join(root, "proc/filesystems")); err == nil && strings.Contains(string(text), "\tnfs4\n") {
		return nil
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("ask for the kernel's release: %w", err)
	}
	f, err := os.Open(filepath.Join(root, "lib/modules", unix.ByteSliceToString(u.Release[:]), "modules.dep"))
	if err == nil {
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if name, _, _ := strings.Cut(lines.Text(), ":"); strings.HasPrefix(filepath.Base(name), "nfsv4.ko") {
				return nil
			}
		}
	}
	return refuse.Cannotf("use a kernel with CONFIG_NFS_V4 (Debian, Ubuntu: linux-image), or gateway: sshfs",
		"gateway nfs: this kernel has no NFS client (no nfs4 in /proc/filesystems, and no module nfsv4)")
}

// resolve returns the first address of a host; an IPv4 address goes first.
func resolve(ctx context.Context, host string) (netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap(), nil
	}
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, err
	}
	slices.SortStableFunc(all, func(a, b netip.Addr) int { return cmp.Compare(a.Unmap().BitLen(), b.Unmap().BitLen()) })
	return all[0].Unmap(), nil
}

// Plan mounts when the node's links work, and puts the mount over an empty place that the runtime has made.
func (NFS) Plan(m vnode.Mount, s Source, to Node, at string) (Way, error) {
	if err := portblock.Can(to.Cgroups); err != nil && to.Group != "" {
		return Way{}, fmt.Errorf("mount %s: %w", m.Target, err)
	}
	dirs := to.Layout.Node(to.Name)
	port := nfsPort
	if p, err := strconv.Atoi(m.Options["port"]); err == nil {
		port = p
	}
	mount := nfsMount{
		Source: m.Source, Server: s.Server, Port: port, Options: nfsOptions(m, s), Older: m.Options["vers"] == "", ReadOnly: m.ReadOnly,
	}
	hold := mounts.Hold{Dir: filepath.Join(dirs.Run, "gateway-"+filepath.Base(at))}
	var get step.Step
	if m.Via == vnode.ViaHost {
		hold.Dir = filepath.Join(to.Layout.Run, "gateways", "nfs-"+mount.key())
		mount.Hold = hold
		get = &nfsShare{nfsMount: mount, Node: to.Name, User: filepath.Base(at)}
	} else {
		mount.Hold, mount.NS, mount.Client = hold, netif.NS{Pin: dirs.NetNS(), PIDFile: dirs.PIDFile()}, to.Name
		get = &nfsOwn{nfsMount: mount}
	}
	var after []step.Step
	if to.Group != "" {
		after = append(after, &portblock.Ports{Rule: portblock.Rule{Ports: slices.Compact([]uint16{nfsPort, uint16(port)})}, Group: group.V2Dir(to.Cgroups, group.Container(to.Cgroups, to.Group))})
	}
	return Way{
		Mount: &Mount{Source: "tmpfs", Target: m.Target, Type: "tmpfs", Options: []string{"ro", "nosuid", "nodev", "noexec", "size=4k", "mode=555"}},
		After: append(after, get, &put{Hold: hold, PIDFile: dirs.PIDFile(), Target: m.Target, ReadOnly: m.ReadOnly}),
	}, nil
}

// Kinds returns the kinds of all steps, those of via: node and those of via: host.
func (NFS) Kinds() step.Kinds {
	return step.Join(portblock.Kinds(), step.Kinds{
		"nfs.mount":   func() step.Step { return &nfsOwn{} },
		"nfs.share":   func() step.Step { return &nfsShare{} },
		"gateway.put": func() step.Step { return &put{} },
	})
}

// Deviations returns how NFS differs.
func (NFS) Deviations() []Deviation { return []Deviation{NoChown, LateLook} }

// nfsOptions returns the options for the kernel, in the order of their names, but for the server's address.
func nfsOptions(m vnode.Mount, s Source) string {
	o := maps.Clone(m.Options)
	if o == nil {
		o = vnode.Options{}
	}
	if o["vers"] == "" {
		o["vers"] = "4.2"
	}
	if strings.HasPrefix(o["vers"], "3") && o["port"] == "" {
		o["port"] = strconv.Itoa(nfsPort) // else the server's rpcbind would name a port that is not blocked
	}
	if m.Via == vnode.ViaHost { // else mounts of one server's folders would be one file system, and giving up one would give up all
		o["nosharecache"] = "true"
	}
	if o["soft"] == "" {
		o["hard"] = "true"
	}
	o["sec"], o["proto"] = "sys", "tcp"
	if s.Server.Is6() {
		o["proto"] = "tcp6"
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if o[name] == "true" {
			all = append(all, name)
			continue
		}
		all = append(all, name+"="+o[name])
	}
	return strings.Join(all, ",")
}

// key identifies a shared mount: nodes with the same key share it.
func (n *nfsMount) key() string {
	text := n.Source + "\n" + n.Server.String() + "\n" + n.Options
	if n.ReadOnly {
		text += "\nread-only"
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// nfsRefused explains why the kernel did not mount.
func nfsRefused(n *nfsMount, err error) error {
	what := fmt.Errorf("mount %s (%s) by NFS: %w", n.Source, n.Server, err)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESTALE):
		return refuse.NotFoundf("%w: the server exports no such folder to this address", what)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return refuse.Cannotf("export it to the node's address, with sec=sys (exports(5)); via: host asks from the host's address", "%w", what)
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.EINVAL):
		return refuse.Cannotf("ask for another version with options: {vers: …}; see the kernel's log (dmesg)", "%w", what)
	}
	return what
}
