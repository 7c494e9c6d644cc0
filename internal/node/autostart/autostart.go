// Package autostart knows which nodes start with the host, and maintains the systemd unit that starts them. It stands above package node: the unit
// is no step of any node, but follows from the specs of all of them.
package autostart

import (
	"slices"

	"berth/internal/host/systemd"
	"berth/internal/node"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
)

// Nodes returns the names of the nodes whose specs say autostart, in order.
func Nodes(b *node.Berth) ([]string, error) {
	specs, err := b.Specs()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, n := range specs {
		if n.Autostart {
			names = append(names, n.Name)
		}
	}
	return names, nil
}

// unit runs berth start --autostart at boot, once the network is up: a node may need an adapter or a bridge, or mount a folder
// that comes over the network. Starting a thousand nodes takes minutes, so the unit has no time limit.
func unit(l layout.Layout) (systemd.AtBoot, error) {
	program, err := systemd.Program()
	return systemd.AtBoot{
		Dir: systemd.UnitDir, Name: l.AutostartUnit(), Args: slices.Concat([]string{program}, l.Args(), []string{"start", "--autostart"}),
		By:    "berth apply; berth rm removes it with the last node that has autostart",
		About: "Nodes that start with the host (berth start --autostart)",
		Order: "Wants=network-online.target\nAfter=network-online.target local-fs.target remote-fs.target " + l.Unit() + "\n",
	}, err
}

// Applied writes the unit if one of these nodes starts with the host. note says what the admin has to do on a host without
// systemd.
func Applied(l layout.Layout, nodes []*vnode.Node) (note string, err error) {
	if !slices.ContainsFunc(nodes, func(n *vnode.Node) bool { return n.Autostart }) {
		return "", nil
	}
	if !systemd.Running() {
		return "systemd does not run this host: for autostart, call berth start --autostart from a script of its init", nil
	}
	u, err := unit(l)
	if err != nil || u.Written() {
		return "", err
	}
	return "", u.Write()
}

// Settle writes the unit if a node wants it, and else removes it.
func Settle(b *node.Berth) error {
	u, err := unit(b.Layout)
	if err != nil {
		return err
	}
	names, err := Nodes(b)
	switch {
	case err != nil:
		return err
	case len(names) == 0:
		return u.Remove()
	case u.Written() || !systemd.Running():
		return nil
	}
	return u.Write()
}
