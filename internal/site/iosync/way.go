package iosync

import (
	"context"
	"fmt"
	"net/netip"

	"berth/internal/site/intercept/preload"
	"berth/internal/site/iosync/allot"
	"berth/internal/site/iosync/want"
)

// way is a way to apply the limits of nodes to the work that a file server does for them.
type way interface {
	// hold makes the kernel enforce h.Part, and notes in h how to find that again. was is the present record; nil: not known.
	hold(ctx context.Context, h, was *kept) error
	// close closes open files. Limits stay.
	close()
	// followed is called when all nodes of the site are held, with the node of each address; whole: the limits of every
	// node could be set.
	followed(addresses map[netip.Addr]string, whole bool) error
	// stands reports whether what hold set up for a node still works.
	stands(node string) bool
	// free ends the agent's own processes in the groups of nodes, before the groups are removed. It returns the nodes for which it did.
	free(nodes []string) ([]string, error)
	// drop removes what hold set up for a node, whose group is gone.
	drop(node string) error
	// missing says which of a node's requests are not held; "" if all are.
	missing(part want.Entry) string
	// counted reads the counters once, and returns a function that gives those of a node.
	counted() func(node string) (sum allot.Rates, ok bool)
}

// loaded returns the faults of the threads that should move themselves into groups; "" if there are none.
func loaded(dir string) (string, error) {
	all, err := preload.Servers(dir)
	if err != nil {
		return "", err
	}
	if len(all) == 0 {
		return fmt.Sprintf("no server has %s loaded for it: start it with LD_PRELOAD=/usr/lib/berth/%s BERTH_SYNC_DIR=%s", preload.Library, preload.Library, dir), nil
	}
	for _, s := range all {
		if s.Failed > 0 {
			return fmt.Sprintf("threads of process %d could not go into a group %d times, the last time: %v", s.PID, s.Failed, s.Last), nil
		}
	}
	for _, s := range all {
		if s.Other {
			return fmt.Sprintf("process %d loaded another version of %s than that of this berthd, which may know fewer addresses of nodes: restart the server", s.PID, preload.Library), nil
		}
	}
	return "", nil
}
