package syncbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/bench/side"
	"berth/internal/spec/vnode"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/proof"
	"berth/internal/sys/refuse"
)

// allow gives a node a rate, 0 for none, and waits until the servers hold it.
func (s *site) allow(ctx context.Context, node, key string, rate vnode.Rate) error {
	value := "max"
	if rate > 0 {
		value = rate.String()
	}
	if err := s.lab.Set(ctx, node, "io."+entry+"."+key, value); err != nil {
		return err
	}
	return s.holds(ctx, node, key, int64(rate))
}

// heldWithin is how long the servers may take until they hold a limit.
const heldWithin = 10 * time.Second

// held is the part that is read of berth sync ls --json.
type held struct {
	Node   string        `json:"node"`
	Failed string        `json:"failed"`
	Limits []proof.Limit `json:"limits"`
}

// holds waits until the kernel has the limit of a node on all servers: their parts are what was asked for, but for rounding. A value of 0
// is no limit.
func (s *site) holds(ctx context.Context, node, key string, value int64) error {
	for begun := time.Now(); ; {
		var sum int64
		there := true
		for _, v := range s.servers {
			part, ok, err := s.part(ctx, v, node, "io."+shared+"."+key)
			if err != nil {
				return err
			}
			sum, there = sum+part, there && ok
		}
		if there && (key == "weight" && sum == value || sum <= value && sum >= value-value/50) {
			return nil
		}
		if time.Since(begun) > heldWithin {
			return refuse.Cannotf("berth sync ls says more while it runs", "the file servers do not hold %s of %s: %d of %d after %v", key, node, sum, value, heldWithin)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond): // there is no event when another machine's agent changes limits
		}
	}
}

// part is what one server enforces of a node's limit, 0 where there is none; ok is false while it does not know the node or does not
// hold what it says.
func (s *site) part(ctx context.Context, v server, node, key string) (part int64, ok bool, err error) {
	out, err := side.Host(ctx, []string{s.lab.Self, "--root", v.root, "sync", "ls", "--json"})
	if err != nil {
		return 0, false, err
	}
	var all []held
	if err := json.Unmarshal(out, &all); err != nil {
		return 0, false, fmt.Errorf("read what berth sync ls says: %s", jsonfile.Wrong(out, err))
	}
	i := slices.IndexFunc(all, func(h held) bool { return h.Node == node })
	if i < 0 {
		return 0, false, nil
	}
	for _, l := range all[i].Limits {
		if l.Key != key {
			continue
		}
		if n, err := strconv.ParseInt(l.Asked, 10, 64); err == nil {
			return n, l.Holds, nil
		}
		r, err := vnode.ParseRate(l.Asked)
		return int64(r), l.Holds && err == nil, nil
	}
	return 0, all[i].Failed == "", nil
}

// forget takes files out of the servers' page caches.
func forget(paths []string) error {
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		err = errors.Join(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
		if err != nil {
			return fmt.Errorf("take %s out of the page cache: %w", path, err)
		}
	}
	return nil
}

// forgetting does that again and again until it is ended: reads of a file that is smaller than what is read in a trial come from the disk.
func forgetting(paths []string, every time.Duration) (end func()) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(every):
				_ = forget(paths) // it worked before the trial
			}
		}
	}()
	return func() { close(stop); <-done }
}
