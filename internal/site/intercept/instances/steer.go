package instances

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth/internal/sys/bpf"
	"berth/internal/sys/fault"
	"berth/internal/sys/refuse"
)

// most bounds the tables of one file system: addresses of nodes, and ports of instances.
const most = 1 << 14

// The files that keep the parts of a steering when no agent runs.
const (
	linkPin    = "link"
	nodesPin   = "nodes"
	socketsPin = "sockets"
	portsPin   = "ports"
)

// socketValue is the size of what the table of sockets has under an address. With less, the kernel does not let programs look up
// whether a socket is there (sock_hash_lookup_sys in net/core/sock_map.c).
const socketValue = 8

// Steering directs new connections of nodes to the instances of a server, in one network namespace. It goes on when no process has it
// open.
type Steering struct {
	nodes, sockets, ports *bpf.Map
	link                  *os.File
}

// standard is where hosts have their bpffs. A directory below it is made for each Berth.
const standard = "/sys/fs/bpf"

// Pins is where the steering of a file system is kept.
type Pins struct {
	Shared string // folder of this Berth's file systems in the host's bpffs
	Name   string // of the file system
	Own    string // where a bpffs is mounted on a host that has none
}

// PinsOf returns the places for a file system. berth is the name of this Berth's folder, dir the folder of the file system.
func PinsOf(berth, name, dir string) Pins {
	return Pins{Shared: filepath.Join(standard, berth), Name: name, Own: filepath.Join(dir, "bpf")}
}

func isBPF(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && uint32(st.Type) == unix.BPF_FS_MAGIC
}

// folder returns the folder of the pins, and makes it.
func (p Pins) folder() (string, error) {
	if isBPF(p.Own) {
		return p.Own, nil
	}
	if isBPF(standard) {
		dir := filepath.Join(p.Shared, p.Name)
		return dir, os.MkdirAll(dir, 0o700)
	}
	if err := os.MkdirAll(p.Own, 0o700); err != nil {
		return "", err
	}
	if err := unix.Mount("berth", p.Own, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return "", refuse.Cannotf("mount one at "+standard+", or boot a kernel with CONFIG_BPF_SYSCALL", "mount a bpffs at %s: %w", p.Own, err)
	}
	fault.Point("bpffs of a file server mounted")
	return p.Own, nil
}

// Open steers the connections to a port in a network namespace. It takes over what an earlier agent left. If this kernel cannot
// do it, the error is a [refuse.Cannot].
func Open(p Pins, port uint16, netns *os.File) (s *Steering, err error) {
	dir, err := p.folder()
	if err != nil {
		return nil, err
	}
	if s, err = resume(dir, netns); err != nil {
		return nil, err
	}
	if s != nil {
		if err := s.renew(port); err != nil {
			s.Close()
			return nil, err
		}
		return s, nil
	}
	if err := p.Remove(); err != nil { // the pinned steering is not whole, or of another namespace
		return nil, err
	}
	if dir, err = p.folder(); err != nil {
		return nil, err
	}
	s = &Steering{}
	defer func() {
		if err != nil {
			s.Close()
			err = errors.Join(err, p.Remove())
		}
	}()
	for _, m := range []struct {
		at    **bpf.Map
		kind  uint32
		flags uint32
		name  string
		key   int
		value int
	}{
		{&s.nodes, unix.BPF_MAP_TYPE_HASH, unix.BPF_F_NO_PREALLOC, nodesPin, 16, 4},
		{&s.sockets, unix.BPF_MAP_TYPE_SOCKHASH, 0, socketsPin, 16, socketValue},
		{&s.ports, unix.BPF_MAP_TYPE_HASH, unix.BPF_F_NO_PREALLOC, portsPin, 4, 4},
	} {
		if *m.at, err = bpf.NewMapOf(m.kind, m.flags, "berth_"+m.name, m.key, m.value, most); err != nil {
			return nil, refused(err)
		}
		if err = (*m.at).Pin(filepath.Join(dir, m.name)); err != nil {
			return nil, err
		}
	}
	program, err := load(port, s.nodes, s.sockets, s.ports)
	if err != nil {
		return nil, refused(err)
	}
	defer program.Close()
	if s.link, err = bpf.AttachNetns(program, netns, unix.BPF_SK_LOOKUP); err != nil {
		return nil, refused(err)
	}
	fault.Point("connections to a file server steered")
	return s, bpf.Pin(s.link, filepath.Join(dir, linkPin))
}

// refused says why the kernel does not steer connections.
func refused(err error) error {
	remedy := "it takes Linux 5.9 or later with CONFIG_BPF_SYSCALL: serve the file system another way"
	if errors.Is(err, os.ErrPermission) {
		remedy = "a policy of this host forbids programs of this kind: serve the file system another way"
	}
	return refuse.Cannotf(remedy, "this kernel refuses to steer connections: %w", err)
}

// resume opens the pinned objects that an earlier agent left in a folder; nil if some are missing, or of another kind.
func resume(dir string, netns *os.File) (*Steering, error) {
	s := &Steering{}
	var errs [5]error
	s.link, errs[0] = bpf.OpenPinned(filepath.Join(dir, linkPin))
	s.nodes, errs[1] = bpf.OpenMap(filepath.Join(dir, nodesPin), 16, 4)
	s.sockets, errs[2] = bpf.OpenMap(filepath.Join(dir, socketsPin), 16, socketValue)
	s.ports, errs[3] = bpf.OpenMap(filepath.Join(dir, portsPin), 4, 4)
	var st unix.Stat_t
	errs[4] = unix.Fstat(int(netns.Fd()), &st)
	err := errors.Join(errs[:]...)
	if err == nil {
		if at, err := bpf.NetnsOf(s.link); err == nil && uint64(at) == st.Ino {
			return s, nil
		}
	}
	s.Close()
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM} { // it may well be whole, and nodes are not let in meanwhile
		if errors.Is(err, e) {
			return nil, fmt.Errorf("open what steers the connections of nodes: %w", err)
		}
	}
	return nil, nil
}

// renew puts the program of this berthd in place of the one that an earlier agent left, which may be of another version.
func (s *Steering) renew(port uint16) error {
	program, err := load(port, s.nodes, s.sockets, s.ports)
	if err != nil {
		return refused(err)
	}
	defer program.Close()
	return bpf.Replace(s.link, program)
}

// Whole says what is wrong with the steering in a network namespace; nil if nothing is.
func (s *Steering) Whole(netns *os.File) error {
	at, err := bpf.NetnsOf(s.link)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(netns.Fd()), &st); err != nil {
		return fmt.Errorf("look at the network namespace %s: %w", netns.Name(), err)
	}
	if uint64(at) != st.Ino {
		return fmt.Errorf("connections in the network namespace %s are not steered any more", netns.Name())
	}
	return nil
}

// Close lets go of the steering, which goes on.
func (s *Steering) Close() {
	for _, m := range []*bpf.Map{s.nodes, s.sockets, s.ports} {
		if m != nil {
			_ = m.Close() // it is pinned, or not needed
		}
	}
	if s.link != nil {
		_ = s.link.Close()
	}
}

// Known lists the addresses whose connections do not go to the server's own socket.
func (s *Steering) Known() (all []netip.Addr, err error) {
	keys, err := s.nodes.Keys()
	for _, k := range keys {
		all = append(all, netip.AddrFrom16([16]byte(k)).Unmap())
	}
	return all, err
}

// Refuse refuses new connections from an address, until Serve.
func (s *Steering) Refuse(a netip.Addr) error {
	if err := s.nodes.Put(key(a), number(1)); err != nil {
		return fmt.Errorf("refuse connections from %s: %w", a, err)
	}
	return nil
}

// Withdraw takes an address, that Refuse was called with, from the instance that it was served by: its connections are refused.
func (s *Steering) Withdraw(a netip.Addr) error {
	if err := s.sockets.Delete(key(a)); err != nil {
		return fmt.Errorf("refuse connections from %s: %w", a, err)
	}
	return nil
}

// Serve gives new connections from an address, that Refuse was called with, to a listening socket. When every process has
// closed that socket, the kernel forgets it, and connections are refused.
func (s *Steering) Serve(a netip.Addr, listening *os.File) error {
	conn, err := listening.SyscallConn() // Fd would make the socket blocking for the instance, too
	if err != nil {
		return err
	}
	if ctlErr := conn.Control(func(fd uintptr) {
		err = s.sockets.Put(key(a), binary.NativeEndian.AppendUint64(nil, uint64(fd)))
	}); ctlErr != nil {
		return ctlErr
	}
	if errors.Is(err, unix.EOPNOTSUPP) { // net/core/sock_map.c
		return refuse.Cannotf("make the instance listen by TCP alone, not by MPTCP", "this kernel cannot steer connections from %s to the socket of the instance: %w", a, err)
	}
	if err != nil {
		return fmt.Errorf("steer connections from %s: %w", a, err)
	}
	return nil
}

// Serves reports whether new connections from an address go to a socket that Serve was called with and that a process still has
// open.
func (s *Steering) Serves(a netip.Addr) (bool, error) { return s.sockets.Has(key(a)) }

// Pass gives new connections from an address to the server's own socket.
func (s *Steering) Pass(a netip.Addr) error {
	if err := errors.Join(s.nodes.Delete(key(a)), s.sockets.Delete(key(a))); err != nil {
		return fmt.Errorf("forget the address %s: %w", a, err)
	}
	return nil
}

// Guard keeps all but nodes from connecting to the port of an instance; they get their own instance there.
func (s *Steering) Guard(port uint16) error {
	if err := s.ports.Put(number(uint32(port)), number(1)); err != nil {
		return fmt.Errorf("guard port %d: %w", port, err)
	}
	return nil
}

// Unguard undoes Guard.
func (s *Steering) Unguard(port uint16) error { return s.ports.Delete(number(uint32(port))) }

// GuardOnly undoes Guard for all ports but these.
func (s *Steering) GuardOnly(ports map[uint16]bool) error {
	keys, err := s.ports.Keys()
	errs := []error{err}
	for _, k := range keys {
		if port := uint16(binary.NativeEndian.Uint32(k)); !ports[port] {
			errs = append(errs, s.Unguard(port))
		}
	}
	return errors.Join(errs...)
}

// Wrong says what is wrong with the steering; "" if nothing is, or if only root may see it.
func (p Pins) Wrong() string {
	if os.Geteuid() != 0 {
		return ""
	}
	for _, dir := range []string{p.Own, filepath.Join(p.Shared, p.Name)} {
		link, err := bpf.OpenPinned(filepath.Join(dir, linkPin))
		if err != nil {
			continue
		}
		at, err := bpf.NetnsOf(link)
		_ = link.Close()
		if err == nil && at != 0 {
			return ""
		}
	}
	return "connections of nodes are not steered: somebody took the program away, or the server's network namespace ended; restart berthd"
}

func number(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// Remove ends the steering of a file system, and takes it out of the kernel: all connections go to the server's own socket. That
// there is none is no error.
func (p Pins) Remove() error {
	var errs []error
	for _, dir := range []string{p.Own, filepath.Join(p.Shared, p.Name)} {
		if !isBPF(dir) {
			continue
		}
		if link, err := bpf.OpenPinned(filepath.Join(dir, linkPin)); err == nil {
			errs = append(errs, bpf.Detach(link), link.Close()) // another mount namespace may keep a copy of the mount
		}
		fault.Point("connections to a file server steered no more")
		for _, name := range []string{linkPin, socketsPin, nodesPin, portsPin} {
			if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
		if dir == p.Own {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				errs = append(errs, fmt.Errorf("unmount %s: %w", dir, err))
			}
			continue
		}
		for _, d := range []string{dir, p.Shared} {
			if err := unix.Rmdir(d); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTEMPTY) {
				errs = append(errs, fmt.Errorf("remove %s: %w", d, err))
			}
		}
	}
	if err := unix.Rmdir(p.Own); err != nil && !errors.Is(err, unix.ENOENT) {
		errs = append(errs, fmt.Errorf("remove %s: %w", p.Own, err))
	}
	return errors.Join(errs...)
}
