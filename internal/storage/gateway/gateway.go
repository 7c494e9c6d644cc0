// Package gateway has the ways by which a node reaches a file system: bind (a folder of this host), and nfs, sshfs and
// sshfs-direct (file servers). Each is a [Gateway], in files with its name; package gatewaytest is the conformance suite that all
// of them pass.
//
// It builds on package mounts, whose types say what to stage.
package gateway

import (
	"context"
	"maps"
	"net/netip"

	"berth/internal/host"
	"berth/internal/spec/vnode"
	"berth/internal/storage/mounts"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Gateway is one way by which a node reaches a file system.
//
// Callers may assume: Look and Plan change nothing; Plan does not refuse what Look allowed; neither links in the source nor
// anything the node does leads it out of the source; nothing of a mount is visible on the host, or left there when the node
// ends, however it ends.
//
// An implementation must pass the conformance suite (package gatewaytest).
type Gateway interface {
	// Look reads what Plan needs to know of a mount's source, from the host or from the file server, until ctx ends. It
	// refuses a source that cannot be mounted: refuse.NotFound if the source does not exist, refuse.Invalid if no node
	// may have it, refuse.Cannot if it cannot be mapped as asked.
	Look(ctx context.Context, m vnode.Mount, to Node) (Source, error)
	// Plan returns how the mount gets into the node. It is pure. at is where it may be staged, below mounts.Plan.Dir.
	Plan(m vnode.Mount, s Source, to Node, at string) (Way, error)
	// Kinds returns the kinds of the steps that Plan returns. They join those of the node's journal.
	Kinds() step.Kinds
	// Deviations returns in what the gateway differs from a file system of this host. The suite asserts each, and that there
	// are no others.
	Deviations() []Deviation
}

// Deviation is a behaviour of a mount that programs do not expect of a file system of this host, as a sentence for docs/gateways.md.
type Deviation string

// The deviations.
const (
	OneOwner   Deviation = "All files belong to one user of the node, whoever made them, and nobody can give them to another."
	LateLook   Deviation = "A folder that the server does not have is found when the node starts, not by berth plan."
	NoSpecial  Deviation = "There are no FIFOs."
	NoChown    Deviation = "Root inside cannot give files to other users: the server does not know it as root."
	OneLink    Deviation = "A file has one link in stat(2), however many names it has."
	DaemonEnds Deviation = "When its daemon ends, what is open gets an error; files that are opened later are served by the next daemon."
	NodeLocks  Deviation = "Locks hold within the node only: another node, or the server, does not see them."
	NoSpaceErr Deviation = "A full disk of the server is told as \"input/output error\", not as \"no space left on device\"."
)

// Node has what a gateway needs to know of the node, besides the mount.
type Node struct {
	Name   string
	UserNS bool          // the node has ids of its own; without them nothing is idmapped
	Layout layout.Layout // Berth's own folders, which no node may have

	// Where a helper is started (group.StartHelper), so that the node's limits hold it. Only Plan is told.
	Cgroups host.Cgroups
	Group   string // path of the node's group
}

// Source is the state of a mount's source when Look read it.
type Source struct {
	Path   string `json:"path"`             // links resolved: the path that the node really gets
	FSType string `json:"fstype"`           // the kernel's name of the file system: "ext4"
	NoDir  bool   `json:"no_dir,omitempty"` // on this host: it is a file or a socket, not a folder

	Server netip.Addr `json:"server,omitzero"` // address of the file server
}

// Way is how a mount gets into a node. All its steps are live steps: they last until the node stops, and are undone in
// reverse order after its process 1 has ended. A step that leaves a process running is a Helper.
type Way struct {
	Before []step.Step   // done when the node's groups exist, before its process 1 is made
	Stage  *mounts.Stage // the part that is staged outside; nil if there is none
	Mount  *Mount        // the mount that the OCI runtime makes inside: of the staged part, or of an empty place for a step of After to use
	After  []step.Step   // done when the node's links work, before its command starts; process 1 is in the node's PIDFile
}

// Mount is one mount that the OCI runtime makes, in the terms of mount(8).
type Mount struct {
	Source  string   `json:"source"`
	Target  string   `json:"target"` // inside
	Type    string   `json:"type"`
	Options []string `json:"options"`
}

// Set is the gateways that a berth has, by the names that specs use.
type Set map[string]Gateway

// All returns the gateways of this version.
func All() Set {
	return Set{vnode.BindGateway: Bind{}, vnode.NFSGateway: NFS{}, vnode.SSHFSGateway: SSHFS{}, vnode.SSHFSDirectGateway: SSHFS{Direct: true}}
}

// For returns the gateway that a spec names; "" means bind.
func (s Set) For(name string) (Gateway, error) {
	if name == "" {
		name = vnode.BindGateway
	}
	if g, ok := s[name]; ok {
		return g, nil
	}
	if name == vnode.VirtioFSGateway {
		return nil, refuse.Cannotf("use gateway: bind", "gateway %s is for nodes of kind machine", name)
	}
	return nil, refuse.Cannotf("use gateway: bind", "gateway %s comes with a later version", name)
}

// Of returns the gateway of a node's mount. A machine's folder of the host comes by virtiofs, whether the spec says so or bind: what may be
// its source, and whose the files are, is the same.
func (s Set) Of(n *vnode.Node, m *vnode.Mount) (Gateway, error) {
	if n.IsMachine() && m.Gateway == vnode.VirtioFSGateway {
		return s.For(vnode.BindGateway)
	}
	return s.For(m.Gateway)
}

// Kinds returns the kinds of the steps of all gateways. Several gateways may have a kind in common (package portblock).
func (s Set) Kinds() step.Kinds {
	all := step.Kinds{}
	for _, g := range s {
		maps.Copy(all, g.Kinds())
	}
	return all
}
