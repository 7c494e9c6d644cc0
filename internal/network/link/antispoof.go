package link

import (
	"slices"

	"berth/internal/host/netif"
	"berth/internal/network/antispoof"
	"berth/internal/network/dhcp"
	"berth/internal/spec/vnode"
)

// CheckSender is the step that makes the kernel check what an interface sends.
type CheckSender = antispoof.Step

// antiSpoof returns the step for one network; nil if its spec switches the check off.
func (in *Input) antiSpoof(n vnode.Network) *antispoof.Step {
	if n.Mode == vnode.None || n.Spoof {
		return nil
	}
	way, hub := in.way(n)
	s := &antispoof.Step{
		Inside: netif.Inside{NS: in.NS, If: n.Name}, Way: way, Hub: hub, MAC: in.MACs[n.Name], Address: n.Address, Lent: isAdapter(n),
	}
	if n.DHCP {
		s.Lease = dhcp.LeaseFile(in.Run, n.Name)
	}
	return s
}

// SpoofCheck returns the tag of the program that the kernel runs as an interface's spoof check, and whether that is the
// expected program.
func SpoofCheck(in Input, ifname string) (tag string, holds bool, err error) {
	i := slices.IndexFunc(in.Networks, func(n vnode.Network) bool { return n.Name == ifname })
	if i < 0 {
		return "", false, nil
	}
	if n := in.Networks[i]; n.Mode == vnode.NAT && len(in.Given) == 0 {
		if c, ok := in.NAT.Held(in.Node + "/" + n.Name); ok {
			in.Given = Given{n.Name: &c}
		}
	}
	a := in.antiSpoof(in.addressed(in.Networks[i]))
	if a == nil {
		return "", false, nil
	}
	tag, want, err := a.Tags()
	return tag, tag == want && tag != "", err
}
