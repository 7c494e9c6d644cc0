// Package link gives a node its network interfaces: bridge and nat (veth), macvlan, sriov and phys, with stable MACs. It sets
// them up from outside the node's network namespace, and brings lent adapters and virtual functions home.
//
// Claims and Live are the pure constructors of its steps. Claims last until the node is removed; what the steps of Live
// make ends with the node.
package link

import (
	"berth/internal/host/netif"
	"berth/internal/network/address"
	"berth/internal/network/antispoof"
	"berth/internal/network/nat"
	"berth/internal/network/shape"
	"berth/internal/network/sriov"
	"berth/internal/sys/step"
)

// Kinds makes an empty step of each kind of this package.
func Kinds() step.Kinds {
	return step.Join(nat.Kinds(), step.Kinds{
		"link.claim-mac": func() step.Step { return &address.ClaimMAC{} },
		"link.bridge":    func() step.Step { return &Bridge{} },
		"link.veth":      func() step.Step { return &Veth{} },
		"link.tap":       func() step.Step { return &Tap{} },
		"link.vlan":      func() step.Step { return &VLAN{} },
		"link.macvlan":   func() step.Step { return &Macvlan{} },
		"link.pin":       func() step.Step { return &netif.Pin{} },
		"link.phys":      func() step.Step { return &Phys{} },
		"link.configure": func() step.Step { return &address.Configure{} },
		"link.rate":      func() step.Step { return &shape.Rate{} },

		"link.probe": func() step.Step { return &address.Probe{} },
		"link.dhcp":  func() step.Step { return &address.DHCP{} },

		"link.claim-address": func() step.Step { return &address.ClaimAddress{} },

		"link.rate-change": func() step.Step { return &shape.RateChange{} },

		"link.priority": func() step.Step { return &shape.Priority{} },

		"link.antispoof": func() step.Step { return &antispoof.Step{} },

		"sriov.claim":     func() step.Step { return &sriov.Claim{} },
		"sriov.configure": func() step.Step { return &sriov.Configure{} },
		"sriov.move":      func() step.Step { return &sriov.Move{} },
	})
}
