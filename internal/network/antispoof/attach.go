package antispoof

import (
	"encoding/hex"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/sys/bpf"
	"berth/internal/sys/fault"
)

// name is the program's name in "tc filter" and "bpftool prog".
const name = "berth_antispoof"

// priority is the filter's priority on its side of a link: after Berth's other filter, which drops nothing.
const priority = 2

// Side says which of a link's packets the program checks.
type Side uint32

// The sides of a link at which the program runs. The host's end of a veth receives what the node sends.
const (
	Received Side = netlink.HANDLE_MIN_INGRESS
	Sent     Side = netlink.HANDLE_MIN_EGRESS
)

// attach puts the program for some rules on a link, in place of an earlier one, and returns the tag of the program: the
// kernel's hash of its instructions.
func attach(h *netlink.Handle, l netlink.Link, side Side, r Rules) (tag string, err error) {
	prog, err := r.load()
	if err != nil {
		return "", err
	}
	defer prog.Close()
	if err := netif.AddQdisc(h, l, netif.Clsact(l)); err != nil {
		return "", err
	}
	fault.Point("clsact for the spoof check added")
	f := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: l.Attrs().Index, Parent: uint32(side), Priority: priority, Protocol: unix.ETH_P_ALL, Handle: 1,
		},
		Fd: int(prog.Fd()), Name: name, DirectAction: true,
	}
	if err := h.FilterReplace(f); err != nil {
		return "", fmt.Errorf("add the spoof check to %s: %w", l.Attrs().Name, err)
	}
	return tagOf(prog)
}

// readTag returns the tag of the program on a link; "" if there is none.
func readTag(h *netlink.Handle, l netlink.Link, side Side) (tag string, err error) {
	all, err := netif.Dump(func() ([]netlink.Filter, error) { return h.FilterList(l, uint32(side)) })
	if err != nil {
		return "", fmt.Errorf("list filters of %s: %w", l.Attrs().Name, err)
	}
	for _, f := range all {
		if b, ok := f.(*netlink.BpfFilter); ok && f.Attrs().Priority == priority && b.DirectAction {
			return b.Tag, nil
		}
	}
	return "", nil
}

// Tag returns the tag of the program for the rules, as this kernel computes it.
func (r Rules) Tag() (string, error) {
	prog, err := r.load()
	if err != nil {
		return "", err
	}
	defer prog.Close()
	return tagOf(prog)
}

func (r Rules) load() (*os.File, error) {
	if !r.MAC.IsEthernet() {
		return nil, fmt.Errorf("make a spoof check: %q is no MAC of Ethernet", r.MAC)
	}
	code, err := r.code()
	if err != nil {
		return nil, err
	}
	return bpf.Load(unix.BPF_PROG_TYPE_SCHED_CLS, name, code)
}

func tagOf(prog *os.File) (string, error) {
	info, err := bpf.InfoOf(prog)
	return hex.EncodeToString(info.Tag[:]), err
}
