package agent

import (
	"context"
	"log/slog"
	"maps"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"berth/internal/site/iosync/want"
	"berth/internal/site/store"
	"berth/internal/sys/jsonfile"
)

// View is the whole site in memory, as the store told it last. It goes on with that while the store is away.
type View struct {
	log *slog.Logger

	mu       sync.RWMutex
	prefixes map[string]*part
	told     []func(store.Change)
}

// part has the entries below one prefix.
type part struct {
	listed  chan struct{}                              // closed once it was listed
	decode  func(key string, data []byte) (any, error) // of a value
	entries map[string]entry                           // by key
}

// entry is one key with its decoded value.
type entry struct {
	below    []string // the part of its key after the prefix
	value    any
	revision int64
}

// decode reads the value of a key.
func decode[T any](key string, data []byte) (v T, err error) {
	err = jsonfile.File{Path: key, Is: "a key of the cluster state", Remedy: "its host writes it again when its agent starts"}.Decode(data, &v)
	return v, err
}

func decoder[T any](key string, data []byte) (any, error) { return decode[T](key, data) }

func newView(log *slog.Logger) *View {
	v := &View{log: log, prefixes: map[string]*part{}}
	for prefix, decode := range map[string]func(string, []byte) (any, error){
		store.Hosts: decoder[HostRecord], store.Members: decoder[Member], store.Nodes: decoder[NodeRecord], store.Filesystems: decoder[want.Server], store.IO: decoder[want.Node],
		store.Offices: decoder[Office],
	} {
		v.prefixes[prefix] = &part{listed: make(chan struct{}), decode: decode, entries: map[string]entry{}}
	}
	return v
}

// Follow calls each with every change of a key from now on. It must return soon.
func (v *View) Follow(each func(store.Change)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.told = append(v.told, each)
}

// follow keeps the view until ctx ends.
func (v *View) follow(ctx context.Context, s store.Store) error {
	all, ctx := errgroup.WithContext(ctx)
	for prefix, p := range v.prefixes {
		all.Go(func() error {
			return store.Follow(ctx, s, prefix, store.Follower{
				Reset: func(all []store.Entry) { v.reset(prefix, p, all) },
				Change: func(b store.Batch) {
					for _, c := range b.Changes {
						v.change(prefix, p, c)
					}
				},
			})
		})
	}
	return all.Wait()
}

// reset takes the whole content of a part. Followers are told of the differences.
func (v *View) reset(prefix string, p *part, all []store.Entry) {
	v.mu.RLock()
	gone := maps.Clone(p.entries)
	v.mu.RUnlock()
	for _, e := range all {
		if was, ok := gone[e.Key]; !ok || was.revision != e.Revision {
			v.change(prefix, p, store.Change{Entry: e})
		}
		delete(gone, e.Key)
	}
	for key := range gone {
		v.change(prefix, p, store.Change{Entry: store.Entry{Key: key}, Deleted: true})
	}
	select {
	case <-p.listed:
	default:
		close(p.listed)
	}
	debug.FreeOSMemory() // a list of a large site takes more on its way than what is kept of it
}

func (v *View) change(prefix string, p *part, c store.Change) {
	v.mu.Lock()
	if c.Deleted {
		delete(p.entries, c.Key)
	} else if value, err := p.decode(c.Key, c.Value); err != nil {
		v.log.Warn("a key of the store is left out", "err", err)
		delete(p.entries, c.Key)
	} else {
		p.entries[c.Key] = entry{store.Below(prefix, c.Key), value, c.Revision}
	}
	told := v.told
	v.mu.Unlock()
	for _, each := range told {
		each(c)
	}
}

// wait waits until the site was listed once, but not longer than d.
func (v *View) wait(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for _, p := range v.prefixes {
		select {
		case <-p.listed:
		case <-ctx.Done():
			return
		}
	}
}

// has reports whether all below a prefix was listed once.
func (v *View) has(prefix string) bool {
	select {
	case <-v.prefixes[prefix].listed:
		return true
	default:
		return false
	}
}

// whole waits until all below some prefixes was listed once, or ctx ends.
func (v *View) whole(ctx context.Context, prefixes ...string) error {
	for _, p := range prefixes {
		select {
		case <-v.prefixes[p].listed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// each calls f with the entries below a prefix. f must not keep the lock long.
func each[T any](v *View, prefix string, f func(below []string, value T)) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, e := range v.prefixes[prefix].entries {
		if value, ok := e.value.(T); ok {
			f(e.below, value)
		}
	}
}

// revision returns the revision of a key; 0 if it is not there.
func (v *View) revision(prefix string, below ...string) int64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.prefixes[prefix].entries[store.Key(prefix, below...)].revision
}

// get returns one value below a prefix.
func get[T any](v *View, prefix string, below ...string) (value T, ok bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	value, ok = v.prefixes[prefix].entries[store.Key(prefix, below...)].value.(T)
	return value, ok
}
