// Package gateway holds the ways by which a node reaches a file system: one file for each way, one conformance suite for all.
//
// It builds on package mounts, whose types say what to stage.
package gateway

import (
	"berth/internal/layout"
	"berth/internal/mounts"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

// Gateway is one way by which a node reaches a file system.
//
// Callers may assume: Look and Plan change nothing; Plan does not refuse what Look allowed; neither links in the source nor
// anything the node does leads it out of the source; nothing of a mount is visible on the host, or left there when the node
// ends, however it ends.
//
// An implementation must pass the conformance suite (conformance_test.go).
type Gateway interface {
	// Look reads from the host what Plan needs to know of a mount's source. It refuses what the host does not allow:
	// refuse.NotFound if the source does not exist, refuse.Invalid if no node may have it, refuse.Cannot if it cannot be
	// mapped as asked.
	Look(m vnode.Mount, to Node) (Source, error)
	// Plan returns how the mount gets into the node. It is pure. at is where it may be staged, below mounts.Plan.Dir.
	Plan(m vnode.Mount, s Source, to Node, at string) (Way, error)
}

// Node is what a gateway needs to know of the node, besides the mount.
type Node struct {
	UserNS bool          // the node has ids of its own; without them nothing is idmapped
	Layout layout.Layout // Berth's own folders, which no node may have
}

// Source is the state of a mount's source when Look read it.
type Source struct {
	Path   string `json:"path"`   // links resolved: what the node really gets
	FSType string `json:"fstype"` // the kernel's name of the file system: "ext4"
}

// Way is how a mount gets into a node: what is staged outside, and what the OCI runtime mounts inside.
type Way struct {
	Stage mounts.Stage `json:"stage"`
	Mount Mount        `json:"mount"`
}

// Mount is one mount that the OCI runtime makes, in the terms of mount(8).
type Mount struct {
	Source  string   `json:"source"`
	Target  string   `json:"target"` // inside
	Type    string   `json:"type"`
	Options []string `json:"options"`
}

// For returns the gateway that a spec names; "" means bind.
func For(name string) (Gateway, error) {
	switch name {
	case "", vnode.BindGateway:
		return Bind{}, nil
	}
	return nil, refuse.Cannotf("use gateway: bind", "gateway %s comes with a later version", name)
}
