// Package portblock keeps a node's own processes from the ports of file servers that a gateway mounts for it: root inside could
// otherwise speak to a server that trusts the node's address, past the mount.
//
// The port block is a BPF program on the node's group of cgroup v2 (or of the unified hierarchy beside v1). The kernel runs it on
// each packet of a socket that was made in this group. So it does not see the sockets of the kernel's own clients, nor those that
// Berth makes outside and hands to a helper; a helper in the node's group marks its socket.
package portblock

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/sys/bpf"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Mark is the mark (SO_MARK) of sockets that may pass. To set it takes NET_ADMIN or NET_RAW over the network namespace, which no
// process of a node has.
const Mark = 0x62657274

// Rule says which ports the node's processes cannot reach.
type Rule struct {
	Ports   []uint16     `json:"ports"`             // of TCP, UDP, UDP-Lite and SCTP
	Servers []netip.Addr `json:"servers,omitempty"` // at these addresses; none: at all addresses
}

// Ports is the step that blocks ports. The block ends with the node's group.
type Ports struct {
	Rule
	Group string `json:"group"` // the folder of the node's group in the hierarchy of cgroup v2
}

// Kinds returns the kinds of this package's steps.
func Kinds() step.Kinds {
	return step.Kinds{"fence.ports": func() step.Step { return &Ports{} }}
}

// Can refuses a host on which no ports can be blocked: without cgroup v2, or with a v2 tree that has no controller, which nodes
// do not enter (group.EntryTo).
func Can(h host.Cgroups) error {
	if h.V2 != "" && h.Mode() != "v1" {
		return nil
	}
	if h.V2 != "" {
		return refuse.Cannotf("boot with systemd.unified_cgroup_hierarchy=1",
			"a node cannot be kept from the file server's ports: this host's cgroup v2 (%s) has no controller, so nodes are not in it", h.V2)
	}
	return refuse.Cannotf("mount cgroup v2 (boot with systemd.unified_cgroup_hierarchy=1, or mount -t cgroup2 none /sys/fs/cgroup/unified)",
		"a node cannot be kept from the file server's ports: this host has no cgroup v2, whose programs do that")
}

// Kind implements step.Step.
func (p *Ports) Kind() string { return "fence.ports" }

func (p *Ports) String() string {
	var ports, at []string
	for _, n := range p.Ports {
		ports = append(ports, strconv.Itoa(int(n)))
	}
	for _, s := range p.Servers {
		at = append(at, s.String())
	}
	text := "the node's processes cannot reach port " + strings.Join(ports, ", ")
	if len(at) > 0 {
		text += " of " + strings.Join(at, ", ")
	}
	return text + ", by cgroup BPF"
}

// Do attaches the program, unless it is there.
func (p *Ports) Do(context.Context) error {
	return p.on(func(group, prog *os.File, there bool) error {
		if there {
			return nil
		}
		attr := struct{ group, prog, kind, flags, replace uint32 }{
			group: uint32(group.Fd()), prog: uint32(prog.Fd()), kind: unix.BPF_CGROUP_INET_EGRESS, flags: unix.BPF_F_ALLOW_MULTI,
		}
		if _, err := bpf.Call(unix.BPF_PROG_ATTACH, &attr); err != nil {
			return lacking(fmt.Errorf("attach it to %s: %w", group.Name(), err))
		}
		return nil
	})
}

// Verify reads back that the program is attached.
func (p *Ports) Verify(context.Context) error {
	return p.on(func(group, _ *os.File, there bool) error {
		if !there {
			return fmt.Errorf("the group %s does not have the program that keeps the node from the file server's ports", group.Name())
		}
		return nil
	})
}

// Undo does nothing: the program ends with the group, and the node's processes cannot leave the group.
func (p *Ports) Undo(context.Context) error { return nil }

// on calls f with the group, the program, and whether it is attached.
func (p *Ports) on(f func(group, prog *os.File, there bool) error) error {
	group, err := os.Open(p.Group)
	if err != nil {
		return fmt.Errorf("open the node's group: %w", err)
	}
	defer group.Close()
	code, err := p.sorted().code()
	if err != nil {
		return err
	}
	prog, err := bpf.Load(unix.BPF_PROG_TYPE_CGROUP_SKB, "berth_fence", code)
	if err != nil {
		return lacking(err)
	}
	defer prog.Close()
	want, err := bpf.InfoOf(prog)
	if err != nil {
		return err
	}
	tags, err := attached(group)
	if err != nil {
		return lacking(err)
	}
	return f(group, prog, slices.Contains(tags, want.Tag))
}

// attached returns the tags of the programs that a group itself has for outgoing packets.
func attached(group *os.File) ([][8]byte, error) {
	ids, err := bpf.Attached(group, unix.BPF_CGROUP_INET_EGRESS)
	if err != nil {
		return nil, err
	}
	var tags [][8]byte
	for _, id := range ids {
		prog, err := bpf.ByID(id)
		if errors.Is(err, unix.ENOENT) {
			continue // replaced meanwhile
		}
		if err != nil {
			return nil, err
		}
		info, err := bpf.InfoOf(prog)
		prog.Close()
		if err != nil {
			return nil, err
		}
		tags = append(tags, info.Tag)
	}
	return tags, nil
}

// lacking adds a remedy if the kernel cannot hold the rule.
func lacking(err error) error {
	if !slices.ContainsFunc([]error{unix.EINVAL, unix.EOPNOTSUPP, unix.ENOSYS, unix.EPERM}, func(e error) bool { return errors.Is(err, e) }) {
		return fmt.Errorf("keep the node from the file server's ports: %w", err)
	}
	return refuse.Cannotf("use a kernel with CONFIG_BPF_SYSCALL and CONFIG_CGROUP_BPF (Debian, Ubuntu: linux-image), or use gateway: bind on a mount of the host's",
		"the node cannot be kept from the file server's ports: %w", err)
}
