package iosync

import (
	"context"
	"fmt"
	"net/netip"

	"berth/internal/site/intercept/preload"
	"berth/internal/site/iosync/allot"
	"berth/internal/site/iosync/want"
)

// way is how the limits of nodes act on what a file server does for them.
type way interface {
	// hold makes the kernel enforce h.Part, and notes in h what it needs to find that again. was is what is held now; nil: not known.
	hold(ctx context.Context, h, was *kept) error
	// close lets go of what is open. Limits stay.
	close()
	// followed is called when all nodes of the site are held, with whose address is whose; whole: each of them could be.
	followed(addresses map[netip.Addr]string, whole bool) error
	// stands reports whether what hold began for a node goes on.
	stands(node string) bool
	// free ends what works in the groups of nodes, if that is the agent's own, before they are removed. It returns those for which it did.
	free(nodes []string) ([]string, error)
	// drop ends what is held for a node, whose group is gone.
	drop(node string) error
	// missing says which of a node's requests are not held; "" if all are.
	missing(part want.Entry) string
	// counted counts once what was done for nodes so far.
	counted() func(node string) (sum allot.Rates, ok bool)
}

// loaded says what is wrong with the threads that should insert themselves; "" if nothing is.
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
	return "", nil
}
