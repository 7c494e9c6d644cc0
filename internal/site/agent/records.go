package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"runtime"
	"slices"
	"time"

	"berth/internal/host"
	"berth/internal/network/link"
	"berth/internal/node"
	"berth/internal/node/mechanisms"
	"berth/internal/site/agentconf"
	"berth/internal/site/iosync/want"
	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
	"berth/internal/sys/step"
	"berth/internal/sys/version"
)

// OwnerLabel is the label of a node that an operator applied. Only the agent sets it.
const OwnerLabel = "berth.owner"

// HostRecord is what a host's agent publishes of the host while the agent lives: the value of a key below store.Hosts.
type HostRecord struct {
	Address string       `json:"address"`
	Version string       `json:"version"`
	Started time.Time    `json:"started"` // the agent
	Kernel  string       `json:"kernel,omitempty"`
	Cgroups string       `json:"cgroups,omitempty"` // v1, v2, hybrid
	CPUs    int          `json:"cpus"`
	Memory  uint64       `json:"memory,omitempty"` // bytes
	Rack    string       `json:"rack,omitempty"`
	Labels  vnode.Labels `json:"labels,omitempty"`
	Nodes   int          `json:"nodes"`
	Running int          `json:"running"`
	Slots   int          `json:"slots,omitempty"` // 0: no bound
	Free    int          `json:"free,omitempty"`  // of these
}

// Member is a host of the site, whether it lives or not: the value of a key below store.Members.
type Member struct {
	Address string    `json:"address"`
	Since   time.Time `json:"since"`
	Drained time.Time `json:"drained,omitzero"` // since when it refuses new nodes

	Signs   bool   `json:"signs,omitempty"`   // it has the site's key
	Revoked []byte `json:"revoked,omitempty"` // of the host that signs: its list of revoked certificates, which the authority signed
}

// NodeRecord is what a host's agent publishes of one of its nodes: the value of a key below store.Nodes.
type NodeRecord struct {
	Owner     string       `json:"owner,omitempty"` // the operator who applied it; "": an admin
	Phase     string       `json:"phase"`           // running, paused, stopped, exited, creating
	Addresses []string     `json:"addresses,omitempty"`
	MACs      []string     `json:"macs,omitempty"`
	Image     string       `json:"image,omitempty"`
	Labels    vnode.Labels `json:"labels,omitempty"`
	Started   time.Time    `json:"started,omitzero"`
	Digest    string       `json:"digest,omitempty"` // of the spec as it is now
}

// hostFacts reads the facts that do not change while the agent runs.
func hostFacts(c *agentconf.Config) HostRecord {
	r := HostRecord{
		Address: c.Address, Version: version.Berth, Started: time.Now().UTC().Truncate(time.Second), CPUs: runtime.NumCPU(), Rack: c.Rack,
		Labels: c.Labels, Slots: c.Slots,
	}
	if f, err := host.ReadFacts(); err == nil {
		r.Kernel, r.Cgroups = f.Kernel, f.Cgroups.Mode()
	}
	r.Memory = host.New().Use().MemoryTotal
	return r
}

// recordsOf makes the entries that are published of a node: its record, and its limits on shared file systems, if it has
// any.
func (a *Agent) recordsOf(s node.Status) (record, io []byte) {
	r := NodeRecord{Owner: s.Labels[OwnerLabel], Phase: s.State, Addresses: s.Addresses, Image: s.Image, Labels: s.Labels, Started: s.Started}
	var macs map[string]mac.Address
	if j, err := step.Open(a.layout.Node(s.Name).Claims(), mechanisms.Kinds()); err == nil {
		macs = link.MACs(j.Steps())
		for _, m := range macs {
			r.MACs = append(r.MACs, m.String())
		}
		slices.Sort(r.MACs)
	}
	if n, err := a.nodes.Spec(s.Name); err == nil {
		text, _ := json.Marshal(n) // of plain data: cannot fail
		sum := sha256.Sum256(text)
		r.Digest = hex.EncodeToString(sum[:8])
		if w := want.Of(n, a.interfaces(n, macs)); w != nil {
			io, _ = json.Marshal(w)
		}
	}
	record, _ = json.Marshal(r)
	return record, io
}

// interfaces has what is known of a node's interfaces, whose MACs are claimed.
func (a *Agent) interfaces(n *vnode.Node, macs map[string]mac.Address) map[string]want.Interface {
	all := map[string]want.Interface{}
	for _, i := range n.Network {
		is := want.Interface{MAC: macs[i.Name]}
		if i.DHCP {
			if leased, ok := a.nodes.Leased(n.Name, i.Name); ok {
				is.Leased = leased.Addr()
			}
		}
		all[i.Name] = is
	}
	return all
}
