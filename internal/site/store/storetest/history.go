package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"berth/internal/site/store"
)

// History is the history of claims in the store's revisions.
type History struct {
	Revisions  int64             // read
	Claimed    int               // how often something was claimed
	Released   int               // and given up
	Held       map[string]string // key to HOST/NODE, at the last revision
	Violations []string          // claims that were held twice, with the revision
}

// ReadHistory reads all revisions of a store that was never compacted, and checks at each that a claim does not pass from one
// node to another unless it was given up in between: no MAC, address or name is held twice. A claim is one key, so it has one
// value at a time; it must be excluded that a host takes it while another host's node has it.
func ReadHistory(ctx context.Context, s store.Store) (*History, error) {
	h := &History{Held: map[string]string{}}
	marker := store.Root + "checked"
	last, err := s.Commit(ctx, nil, []store.Op{{Key: marker, Value: []byte(time.Now().String())}})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes, err := s.Watch(ctx, store.Root, 0)
	if err != nil {
		return nil, err
	}
	for b := range changes {
		if b.Err != nil {
			return nil, b.Err
		}
		for _, c := range b.Changes {
			h.take(c)
		}
		if h.Revisions = b.Revision; b.Revision >= last {
			return h, nil
		}
	}
	return nil, fmt.Errorf("the history ended before revision %d: %w", last, ctx.Err())
}

// take takes one change into account.
func (h *History) take(c store.Change) {
	if below := store.Below(store.Claims, c.Key); below == nil || below[0] == "fence" {
		return // a fence says that an agent has started
	}
	if c.Deleted {
		delete(h.Held, c.Key)
		h.Released++
		return
	}
	var by struct{ Host, Node string }
	if err := json.Unmarshal(c.Value, &by); err != nil || by.Host == "" || by.Node == "" {
		h.Violations = append(h.Violations, fmt.Sprintf("revision %d: %s is %s", c.Revision, c.Key, c.Value))
		return
	}
	now := by.Host + "/" + by.Node
	if had, held := h.Held[c.Key]; held && had != now {
		h.Violations = append(h.Violations, fmt.Sprintf("revision %d: %s was %s's and went to %s without having been given up", c.Revision, c.Key, had, now))
	}
	h.Held[c.Key] = now
	h.Claimed++
}

// Hold is a time during which a node surely had something: from the end of the command that made it to the begin of the one
// that removed it.
type Hold struct {
	Thing, Node string // Node as HOST/NODE
	From, To    time.Time
}

// Twice finds things that two nodes had at the same time.
func Twice(all []Hold) (found []string) {
	by := map[string][]Hold{}
	for _, h := range all {
		for _, o := range by[h.Thing] {
			if o.From.Before(h.To) && h.From.Before(o.To) {
				found = append(found, fmt.Sprintf("%s was %s's and %s's at %s", h.Thing, o.Node, h.Node, h.From.Format("15:04:05.000")))
			}
		}
		by[h.Thing] = append(by[h.Thing], h)
	}
	return found
}
