// Package server answers Berth's API over HTTP: it checks who may ask what, and calls a [Host] and a [Site], which do it.
package server

import (
	"context"
	"io"
	"time"

	"berth/internal/image"
	"berth/internal/network/sriov"
	"berth/internal/node"
	"berth/internal/node/events"
	"berth/internal/node/protect"
	"berth/internal/site/api"
	"berth/internal/spec/roles"
	"berth/internal/storage/scratch"
)

// Host has the operations of the API on the host that it runs on. Errors are refusals (package refuse) or failures; a spec's
// mistakes are spec.Problems. Package hostapi is the real one.
type Host interface {
	Facts(ctx context.Context) (api.HostFacts, error)
	Nodes(ctx context.Context) ([]node.Status, error)
	// Node and Logs find nodes of owner alone, also if one of another comes in its place meanwhile; "": all.
	Node(ctx context.Context, name string, owner roles.Owner) (*node.Detail, error)
	// Labels returns the labels of a node, quickly.
	Labels(name string) (map[string]string, error)
	// Apply makes the nodes of a free spec; file is its name in messages.
	Apply(ctx context.Context, file string, spec []byte, restart bool) ([]*node.Outcome, error)
	// Templates lists the templates as the one who asks may use them.
	Templates(who roles.Who) ([]api.Template, error)
	// ApplyTemplate makes a node from a template for the one who asks, whose name its label berth.owner is. Its command begins after hold at the earliest.
	ApplyTemplate(ctx context.Context, who roles.Who, template, name string, parameters map[string]any, hold time.Duration) (*node.Outcome, error)
	// Start, Stop, Restart and Remove find nodes of owner alone, also if one of another comes in its place meanwhile; "": all.
	Start(ctx context.Context, name string, owner roles.Owner) (changed bool, err error)
	// Stop and Restart wait grace; negative: as the node's spec says.
	Stop(ctx context.Context, name string, grace time.Duration, owner roles.Owner) (changed bool, err error)
	Restart(ctx context.Context, name string, grace time.Duration, owner roles.Owner) (wasUp bool, err error)
	Set(ctx context.Context, name string, changes []node.KeyValue) ([]node.SetResult, error)
	Remove(ctx context.Context, name string, force bool, owner roles.Owner) error
	Logs(ctx context.Context, name string, owner roles.Owner, wish api.Logs, to io.Writer) error
	Events() events.File
	Images(ctx context.Context) ([]image.Record, error)
	PullImage(ctx context.Context, ref, name string) (image.Record, error)
	RemoveImage(ctx context.Context, name string) error
	Pools(ctx context.Context) ([]scratch.Listed, error)
	Functions(ctx context.Context) ([]sriov.PF, error)
	Protected(ctx context.Context) ([]protect.Service, error)
	// Program is the command line as this host runs it: the program berth, and the arguments that name its root.
	Program() []string
}

// Site has the operations of the API on the other hosts. stale says why the result of a read may be out of date; "" if it is
// not.
type Site interface {
	Hosts(ctx context.Context) (all []api.Host, stale string, err error)
	Nodes(ctx context.Context) (all []api.SiteNode, stale string, err error)
	// Drain keeps new nodes from a host; Drain with on false takes that back.
	Drain(ctx context.Context, host string, on bool) (changed bool, err error)
	// Forget gives up the claims of a host that will not come back.
	Forget(ctx context.Context, host string) error
}
