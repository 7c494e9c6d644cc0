package node

import (
	"context"

	"berth/internal/host/counters"
	"berth/internal/image"
	"berth/internal/network/link"
	"berth/internal/node/inspect"
	"berth/internal/storage/scratch"
	"berth/internal/sys/proof"
	"berth/internal/sys/step"
)

// Detail is the document of berth show for one node.
type Detail struct {
	Status
	inspect.Within
	Hostname string           `json:"hostname"`
	Phase    string           `json:"phase"` // of its live journal; "down" if it does not run
	Command  []string         `json:"command,omitempty"`
	IDs      string           `json:"ids"` // the node's ids as the host has them
	Cgroup   string           `json:"cgroup"`
	Links    []inspect.Link   `json:"links,omitempty"`
	Devices  []inspect.Device `json:"devices,omitempty"`
	Limits   []proof.Limit    `json:"limits,omitempty"`
	Scratch  []scratch.Place  `json:"scratch,omitempty"`
	Outside  []string         `json:"outside,omitempty"` // processes that another program has moved out of the node's group
	Usage    *counters.Usage  `json:"usage,omitempty"`
}

// Once returns a context for Show of many nodes: the host's agent is asked once for what it knows of file servers, and no guest is asked for
// its memory.
func (b *Berth) Once(ctx context.Context) context.Context { return inspect.Once(ctx, b.Layout) }

// Show tells everything of one node.
func (b *Berth) Show(ctx context.Context, name string) (*Detail, error) {
	s, err := b.Stored(name)
	if err != nil {
		return nil, err
	}
	boot, err := step.BootID()
	if err != nil {
		return nil, err
	}
	n := s.Now
	d := &Detail{
		Status: b.ended(ctx, name, boot), Hostname: n.Host(), Phase: "down", Command: n.Command,
		IDs: inspect.IDs(b.Layout, n), Cgroup: b.GroupPath(name),
	}
	img, _ := image.Open(b.Layout).Resolve(n.Image) // without it, the spec's own words are shown
	if len(d.Command) == 0 {
		d.Command = img.Config.Command()
	}
	if j, err := b.Live(name); err == nil {
		d.Phase = string(j.Phase)
	}
	_, initErr := b.LiveInit(name)
	var claims []step.Step
	if j, err := b.Claims(name); err == nil {
		claims = j.Steps()
	}
	macs := link.MACs(claims)
	d.Scratch = scratch.Pools{Dir: b.Layout.Scratch()}.Places(b.Host.Sys, n, scratch.Volumes(claims))
	d.Links, d.Within = inspect.Links(b.Layout, n, macs, initErr == nil), inspect.Inside(n, img.Config.User)
	if err := d.FindTrouble(link.NewSnapshot(b.Hub())); err != nil {
		return nil, err
	}
	held, err := b.held(ctx, n, d.PID, initErr == nil)
	d.Devices, d.Limits, d.Outside, d.Usage = held.Devices, held.Limits, held.Outside, held.Usage
	return d, err
}

// ended returns the status of a node; if process 1 has just ended, it includes how.
func (b *Berth) ended(ctx context.Context, name, boot string) Status {
	ctx, cancel := context.WithTimeout(ctx, endWait)
	defer cancel()
	s := b.Status(name, boot)
	b.awaitEnd(ctx, &s)
	return s
}
