package vnode

import (
	"fmt"
	"slices"
	"strings"

	"berth/internal/sys/mac"
)

// The values that Defaults fills in, besides names of network interfaces.
const (
	defaultMode    = Bridge
	defaultGateway = BindGateway
	defaultMap     = Idmapped
	remoteMap      = Identity // of a mount from a file server
	defaultVia     = ViaNode
	defaultAccess  = "rw"
)

// DefaultPIDs is the most processes and threads of a node whose spec sets none. It confines a fork bomb.
const DefaultPIDs = 4096

// AutoMAC means a MAC address derived from the site's id and the node's name.
const AutoMAC = "auto"

// poolPrefix begins the setting of a MAC that comes from a pool.
const poolPrefix = "pool "

// MACFrom says where the MAC of an interface comes from. All are empty if it keeps the one that it has.
type MACFrom struct {
	Auto  bool        // derived from the site's id and the node's name
	Pool  string      // name of a pool
	Given mac.Address // by the spec
}

// MACFrom reads the setting of an interface's MAC.
func (w *Network) MACFrom() (from MACFrom, err error) {
	pool, isPool := strings.CutPrefix(w.MAC, poolPrefix)
	switch {
	case w.MAC == AutoMAC:
		from.Auto = true
	case isPool:
		from.Pool = pool
	case w.MAC != "":
		from.Given, err = mac.Parse(w.MAC)
	}
	return from, err
}

// Defaults fills in the fixed defaults of fields that are not set: a machine's CPUs, memory and accelerator, interfaces' names, modes
// and MACs, mounts' gateways, maps and, for a file server, via, devices' access, and the limit of processes. It is idempotent. Zero
// values that have a meaning stay zero (no class, restart never, delta on disk, the node's name as host name).
func Defaults(n *Node) {
	if n.Kind == MachineKind {
		n.Machine.setDefaults()
	}
	if n.PIDs == 0 {
		n.PIDs = DefaultPIDs
	}
	for i := range n.Network {
		w := &n.Network[i]
		if w.Mode == "" {
			w.Mode = defaultMode
		}
		if w.Name == "" && w.Mode != None {
			w.Name = fmt.Sprintf("eth%d", i)
		}
		if w.MAC == "" && w.Mode != None && w.Mode != Phys {
			w.MAC = AutoMAC
		}
	}
	for i := range n.Mounts {
		m := &n.Mounts[i]
		if m.Gateway == "" {
			m.Gateway = defaultGateway
		}
		if m.Map == "" {
			m.Map = defaultMap
			if m.Remote() {
				m.Map = remoteMap
			}
		}
		if m.Via == "" && m.Remote() {
			m.Via = defaultVia
		}
	}
	for i := range n.Devices {
		if n.Devices[i].Access == "" {
			n.Devices[i].Access = defaultAccess
		}
	}
}

// withDefaults returns a copy of n with its defaults filled in, except PIDs: berth set may have cleared that limit.
func withDefaults(n *Node) *Node {
	d := *n
	d.Network = slices.Clone(n.Network)
	d.Mounts = slices.Clone(n.Mounts)
	d.Devices = slices.Clone(n.Devices)
	Defaults(&d)
	d.PIDs = n.PIDs
	return &d
}
