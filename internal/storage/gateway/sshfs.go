package gateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"berth/internal/host/group"
	"berth/internal/spec/vnode"
	"berth/internal/storage/mounts"
	"berth/internal/storage/portblock"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// SSHFS shows a folder of a file server by SFTP: the program sshfs is a FUSE daemon on this host, one for each mount. It is a mount
// for one user: the server does everything as the user that the connection has, and all files appear as those of one user of
// the node.
//
// The daemon speaks through a socket of the node's network namespace, sits in the place of the node's helpers and has a user id
// that neither the host nor a node uses. The mount appears in the node after its links work: until then, and without a daemon, its
// target is an empty folder without write permission.
//
// Its deviations from a file system of this host: no chown, no devices and FIFOs, no locks between hosts; files that other users of
// the node make belong to the mount's user; with direct_io no shared mmap.
type SSHFS struct {
	Direct bool // by a plain socket to berth gateway serve; else by the program ssh
}

// The files that the gateway needs on this host.
const (
	fuseDevice  = "/dev/fuse"
	noNodesPort = 7022 // of sshfs-direct
	sshPort     = 22
	hostKeys    = "/etc/ssh/ssh_known_hosts"
)

// Look finds the programs, the server's address and the files of the identity.
func (g SSHFS) Look(ctx context.Context, m vnode.Mount, to Node) (Source, error) {
	if !to.UserNS {
		return Source{}, refuse.Cannotf("leave out user_namespace: false", "mount %s: gateway %s needs a node with ids of its own: root inside would be the server's client itself",
			m.Target, m.Gateway)
	}
	if err := g.can(); err != nil {
		return Source{}, fmt.Errorf("mount %s: %w", m.Target, err)
	}
	name, path, err := vnode.ParseRemote(m.Source)
	if err != nil {
		return Source{}, refuse.Invalidf("mount %s: %w", m.Target, err)
	}
	if !g.Direct {
		if err := identityFiles(m); err != nil {
			return Source{}, fmt.Errorf("mount %s: %w", m.Target, err)
		}
	}
	addr, err := addressOf(ctx, name)
	if err != nil {
		return Source{}, fmt.Errorf("mount %s: %w", m.Target, err)
	}
	return Source{Path: net.JoinHostPort(addr.String(), strconv.Itoa(g.port(m))) + path, FSType: "fuse.sshfs"}, nil
}

// can refuses a host without the programs, or without FUSE.
func (g SSHFS) can() error {
	needs := [][2]string{{"sshfs", "sshfs"}} // program and package
	if !g.Direct {
		needs = append(needs, [2]string{"ssh", "openssh-client"})
	}
	for _, n := range needs {
		if _, err := exec.LookPath(n[0]); err != nil {
			return refuse.Cannotf("apt install "+n[1], "gateway %s needs the program %s, which is not on this host", g.name(), n[0])
		}
	}
	if _, err := os.Stat(fuseDevice); err != nil {
		return refuse.Cannotf("modprobe fuse", "this host's kernel has no FUSE: %w", err)
	}
	return nil
}

func (g SSHFS) name() string {
	if g.Direct {
		return vnode.SSHFSDirectGateway
	}
	return vnode.SSHFSGateway
}

// addressOf finds the address of a server as this host knows it.
func addressOf(ctx context.Context, name string) (netip.Addr, error) {
	if a, err := netip.ParseAddr(name); err == nil {
		return a, nil
	}
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	var none *net.DNSError
	if errors.As(err, &none) && none.IsNotFound {
		return netip.Addr{}, refuse.NotFoundf("this host knows no file server %s: %w", name, err)
	}
	if err != nil {
		return netip.Addr{}, fmt.Errorf("look up the file server %s: %w", name, err)
	}
	return all[0].Unmap(), nil
}

// identityFiles checks the files that ssh will be given.
func identityFiles(m vnode.Mount) error {
	for key, path := range map[string]string{"identity": m.Options["identity"], "known_hosts": cmp.Or(m.Options["known_hosts"], hostKeys)} {
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return refuse.NotFoundf("there is no %s, its %s", path, key)
		case err != nil:
			return fmt.Errorf("look at its %s: %w", key, err)
		case !info.Mode().IsRegular():
			return refuse.Invalidf("%s, its %s, is no file", path, key)
		case key == "identity" && info.Mode().Perm()&0o077 != 0:
			return refuse.Cannotf("chmod 600 "+path, "%s, its identity, can be read by others than its owner (mode %04o)", path, info.Mode().Perm())
		}
	}
	return nil
}

func (g SSHFS) port(m vnode.Mount) int {
	if n, err := strconv.Atoi(m.Options["port"]); err == nil {
		return n
	}
	if g.Direct {
		return noNodesPort
	}
	return sshPort
}

// Plan stages an empty folder, and mounts on it once the node is there and its links work.
func (g SSHFS) Plan(m vnode.Mount, s Source, to Node, at string) (Way, error) {
	name, path, err := vnode.ParseRemote(m.Source)
	if err != nil {
		return Way{}, err
	}
	server, _, _ := strings.Cut(s.Path, "/")
	dirs := to.Layout.Node(to.Name)
	uid := number(m.Options["uid"], 0)
	mount := &SSHFSMount{
		Node: to.Name, Target: m.Target, ReadOnly: m.ReadOnly, Host: name, Path: path, Server: server,
		UID: uid, GID: number(m.Options["gid"], uid), Tuning: tuning(m),
		PIDFile: dirs.PIDFile(), Note: filepath.Join(dirs.Run, filepath.Base(at)+".helper"), Dir: dirs.Run, Cgroups: to.Cgroups, Group: to.Group,
	}
	if !g.Direct {
		mount.SSH = &SSHLogin{User: m.Options["user"], Identity: m.Options["identity"], KnownHosts: cmp.Or(m.Options["known_hosts"], hostKeys)}
	}
	if m.Via == vnode.ViaHost {
		all := filepath.Join(to.Layout.Run, "gateways")
		mount.Hold = mounts.Hold{Dir: filepath.Join(all, "sshfs-"+mount.key())}
		mount.User, mount.Note, mount.Dir = to.Name+"."+filepath.Base(at), mount.Hold.Dir+".helper", all
	}
	var after []step.Step
	if to.Group != "" {
		if err := portblock.Can(to.Cgroups); err != nil {
			return Way{}, fmt.Errorf("mount %s: %w", m.Target, err)
		}
		rule := portblock.Rule{Ports: []uint16{uint16(g.port(m))}}
		if at, err := netip.ParseAddrPort(server); err == nil && !g.Direct { // ssh trusts the key alone, so at other addresses the node may use ssh itself
			rule.Servers = []netip.Addr{at.Addr()}
		}
		after = append(after, &portblock.Ports{Rule: rule, Group: group.V2Dir(to.Cgroups, group.Container(to.Cgroups, to.Group))})
	}
	return Way{
		Mount: &Mount{Source: "tmpfs", Target: m.Target, Type: "tmpfs", Options: []string{"ro", "nosuid", "nodev", "noexec", "size=4k", "mode=555"}},
		After: append(after, mount),
	}, nil
}

// Kinds returns the kinds of the steps of the port block and the mount.
func (SSHFS) Kinds() step.Kinds {
	return step.Join(portblock.Kinds(), step.Kinds{"sshfs.mount": func() step.Step { return &SSHFSMount{} }})
}

// key identifies a shared mount: nodes with the same key share it.
func (s *SSHFSMount) key() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %d %d %q %v %v", s.Host, s.Server, s.Path, s.UID, s.GID, s.Tuning, s.ReadOnly, s.SSH))
	return hex.EncodeToString(sum[:8])
}

// Deviations returns the properties that SFTP and FUSE lack.
func (SSHFS) Deviations() []Deviation {
	return []Deviation{OneOwner, LateLook, NoSpecial, OneLink, NoSpaceErr, NodeLocks, DaemonEnds}
}

func number(text string, otherwise uint32) uint32 {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return otherwise
	}
	return uint32(n)
}

// tuning returns the options of the program sshfs that the mount asks for.
func tuning(m vnode.Mount) []string {
	var all []string
	for _, o := range []struct{ key, sshfs string }{{"direct_io", "direct_io"}, {"no_readahead", "no_readahead"}, {"sync", "sshfs_sync"}} {
		if m.Options[o.key] == "true" {
			all = append(all, o.sshfs)
		}
	}
	return all
}
