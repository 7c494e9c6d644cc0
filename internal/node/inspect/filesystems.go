package inspect

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"berth/internal/host/membership"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/proof"
)

// GoneLimits shows the limits of a node that no disk of this host holds: those that it has beside those of here. Their disk is
// unplugged, or they are held by file servers, which the host's agent names.
func GoneLimits(ctx context.Context, l layout.Layout, n, here *vnode.Node) []proof.Limit {
	var all []proof.Limit
	servers := askServers(ctx, l, n)
	have := vnode.Limits(here)
	for _, s := range vnode.Limits(n) {
		switch fs := FilesystemOf(n, s.Key); {
		case slices.Contains(have, s):
		case fs != "":
			all = append(all, servers.limit(s, fs))
		default:
			all = append(all, proof.Limit{
				Key: s.Key, Asked: s.Value, By: "nothing", Note: "the disk is unplugged: the limit comes back with it", Holds: true,
			})
		}
	}
	return all
}

// fileServers has the servers of file systems, among them the node's; ok is false where the agent does not say, or does not know yet.
type fileServers struct {
	all []membership.Server
	ok  bool
}

// onceKey is the context key of what Once keeps.
type onceKey struct{}

// Once returns a context in which many nodes are looked at: the host's agent is asked once for the servers of all file systems, and no guest is
// asked, which may take its time, or say what it likes.
func Once(ctx context.Context, l layout.Layout) context.Context {
	return context.WithValue(ctx, onceKey{}, sync.OnceValue(func() fileServers { return askFor(ctx, l, nil) }))
}

// askServers asks the host's agent, if the node has limits on a shared file system.
func askServers(ctx context.Context, l layout.Layout, n *vnode.Node) fileServers {
	var of []string
	for _, io := range n.IO {
		if io.Filesystem != "" {
			of = append(of, io.Filesystem)
		}
	}
	if len(of) == 0 {
		return fileServers{}
	}
	if once, ok := ctx.Value(onceKey{}).(func() fileServers); ok {
		return once()
	}
	return askFor(ctx, l, of)
}

// askFor asks for the servers of file systems, of all if none is named.
func askFor(ctx context.Context, l layout.Layout, of []string) (k fileServers) {
	m, err := membership.Read(l)
	if err != nil || m == nil {
		return k
	}
	k.all, err = membership.AgentOf(l, m).Servers(ctx, of)
	k.ok = err == nil
	return k
}

// limit shows a limit on a shared file system.
func (k fileServers) limit(s vnode.Setting, fs string) proof.Limit {
	where := ""
	for _, server := range k.all {
		if server.Filesystem == fs {
			where += fmt.Sprintf(", %s by way %s", server.Host, server.Way)
		}
	}
	if k.ok && where == "" {
		return proof.Limit{
			Key: s.Key, Asked: s.Value, By: "nothing",
			Why: "no host of the site serves file system " + fs + ": name it under filesystems in the berthd.yaml of its servers, or correct the name in the spec",
		}
	}
	if where != "" {
		where = " (" + strings.TrimPrefix(where, ", ") + ")"
	}
	return proof.Limit{
		Key: s.Key, Asked: s.Value, By: "vnode sync", Note: "held by the file servers of " + fs + where + ", not here: berth sync ls there shows it", Holds: true,
	}
}

// FilesystemOf returns the shared file system that a limit is on; "" if it is on none.
func FilesystemOf(n *vnode.Node, key string) string {
	for _, io := range n.IO {
		if io.Filesystem != "" && strings.HasPrefix(key, "io."+io.Name+".") {
			return io.Filesystem
		}
	}
	return ""
}
