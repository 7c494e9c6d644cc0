package gateway

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/storage/mounts"
	"berth/internal/sys/proc"
)

// nfsOwn is a mount in the network namespace of one node.
type nfsOwn struct {
	nfsMount
	lost bool
}

func (n *nfsOwn) Kind() string { return "nfs.mount" }

func (n *nfsOwn) String() string {
	return fmt.Sprintf("%s (%s) by NFS in the node's network: %s", n.Source, n.Server, n.Options)
}

func (n *nfsOwn) Do(ctx context.Context) error { return n.mount(ctx) }

func (n *nfsOwn) Verify(context.Context) error { return n.mounted() }

// Undo gives the data that was written last some time to reach the server.
func (n *nfsOwn) Undo(context.Context) (err error) {
	n.lost, err = n.unmount()
	return err
}

func (n *nfsOwn) Cut() { n.cut = n.Hold.Force() == nil || n.cut }

func (n *nfsOwn) Lost() string { return n.told(n.lost || n.cut) }

func (n *nfsMount) mounted() error {
	if !n.Hold.Mounted() {
		return fmt.Errorf("%s is not mounted", n.Source)
	}
	return nil
}

func (n *nfsMount) told(lost bool) string {
	if !lost {
		return ""
	}
	return fmt.Sprintf("file server %s did not answer: what the node wrote to %s and did not sync is lost", n.Server, n.Source)
}

// nfsShare is a mount in the host's network that several nodes use. The last one unmounts.
type nfsShare struct {
	nfsMount
	Node string `json:"node"`
	User string `json:"user"` // which of the node's mounts
	lost bool
}

func (n *nfsShare) Kind() string { return "nfs.share" }

func (n *nfsShare) String() string {
	return fmt.Sprintf("%s (%s) by NFS in the host's network, one mount for all nodes: %s", n.Source, n.Server, n.Options)
}

func (n *nfsShare) users() users { return users{n.Hold} }
func (n *nfsShare) user() string { return n.Node + "." + n.User }

// Do makes the mount, or joins it if its server answers: a node that starts must not wait for one that is away.
func (n *nfsShare) Do(ctx context.Context) error {
	return n.users().alone(ctx, func() error {
		if n.Hold.Made() {
			server, err := n.reach(ctx)
			if err != nil {
				return err
			}
			server.Close()
		} else if err := os.RemoveAll(n.users().dir()); err != nil { // of a start that was killed: a mount that is not there has no users
			return fmt.Errorf("forget the users of a mount that is gone: %w", err)
		}
		if err := n.users().add(n.user()); err != nil {
			return err
		}
		return n.mount(ctx)
	})
}

func (n *nfsShare) Verify(context.Context) error {
	if !n.users().has(n.user()) {
		return fmt.Errorf("the node is no user of the mount of %s", n.Source)
	}
	return n.mounted()
}

func (n *nfsShare) Undo(ctx context.Context) error {
	return n.users().remove(ctx, n.user(), func() (err error) {
		n.lost, err = n.unmount()
		return err
	})
}

// Cut cuts only if no other node uses the mount: its requests are not this node's to give up.
func (n *nfsShare) Cut() {
	if len(n.users().others(n.user())) == 0 {
		n.cut = n.Hold.Force() == nil || n.cut
	}
}

func (n *nfsShare) Shared() (server string, nodes []string) {
	return n.Server.String(), n.users().othersNodes(n.user())
}

func (n *nfsShare) Lost() string { return n.told(n.lost || n.cut) }

// put puts the mount of a hold into the node.
type put struct {
	Hold     mounts.Hold `json:"hold"`
	PIDFile  string      `json:"pid_file"`
	Target   string      `json:"target"`
	ReadOnly bool        `json:"read_only,omitempty"`
}

func (p *put) Kind() string { return "gateway.put" }

func (p *put) String() string {
	if p.ReadOnly {
		return "it at " + p.Target + ", read-only"
	}
	return "it at " + p.Target
}

func (p *put) Do(context.Context) error {
	node, err := p.node()
	if err != nil {
		return err
	}
	return p.Hold.Put(node, p.Target, p.ReadOnly)
}

func (p *put) Verify(context.Context) error {
	node, err := p.node()
	if err != nil {
		return err
	}
	in, err := p.Hold.In(node, p.Target)
	if err == nil && !in {
		err = fmt.Errorf("it is not mounted at %s in the node", p.Target)
	}
	return err
}

// Undo does nothing: the mount in the node goes with the node's mount namespace.
func (p *put) Undo(context.Context) error { return nil }

// node finds the node's process 1.
func (p *put) node() (mounts.Running, error) {
	text, err := os.ReadFile(p.PIDFile)
	if err != nil {
		return mounts.Running{}, fmt.Errorf("find the node's process 1: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return mounts.Running{}, fmt.Errorf("read pid file %s: %w", p.PIDFile, err)
	}
	id, err := proc.Of(pid)
	if err != nil {
		return mounts.Running{}, fmt.Errorf("find the node's process 1: %w: %w", err, unix.ESRCH)
	}
	return mounts.Running{PID: id.PID, Start: id.Start}, nil
}
