package iosync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"berth/internal/site/iosync/allot"
	"berth/internal/site/iosync/share"
	"berth/internal/site/iosync/want"
	"berth/internal/spec/vnode"
)

// split is how the allowances of nodes are split over the servers of a file system: as the allocator ordered last, else equally, or by
// floors where there are many servers.
type split struct {
	order   allot.Order
	tried   bool            // the order was enforced, but for the nodes that failed
	at      time.Time       // of the last report that was answered
	unknown map[string]bool // nodes that were there before this server, and whose part it was not told
	counted map[string]count
}

// count has the counters of a node at a time.
type count struct {
	at  time.Time
	sum allot.Rates
}

// shared reports whether the allocator says which part of a node's allowance a server enforces.
func shared(w Wish) bool {
	return !w.Want.PerServer && (w.Servers > 1 || w.Bounded) && (w.Want.Read != vnode.IORate{} || w.Want.Write != vnode.IORate{})
}

// part returns the part of a node's entry that this server enforces.
func (s *split) part(w Wish) want.Entry {
	parts, ok := s.order.Parts[w.Node]
	if !shared(w) || !ok && !s.floors(w) {
		return w.Want.Part(w.Servers)
	}
	if !ok {
		parts = floors(w)
	}
	e := w.Want
	e.Read.Rate, e.Read.IOPS = rate(e.Read.Rate, parts[allot.ReadBytes], w.Servers), iops(e.Read.IOPS, parts[allot.ReadOps], w.Servers)
	e.Write.Rate, e.Write.IOPS = rate(e.Write.Rate, parts[allot.WriteBytes], w.Servers), iops(e.Write.IOPS, parts[allot.WriteOps], w.Servers)
	return e
}

// floors reports whether a node that the allocator has not told a part of has floors here, as the allocator assumes. Else it is new in the
// site, and has an equal part.
func (s *split) floors(w Wish) bool { return s.order.Floors || w.Servers > allot.Few }

// floors are the parts below which a node never is.
func floors(w Wish) (all allot.Rates) {
	for k := range all {
		all[k] = share.Floor / float64(max(1, w.Servers))
	}
	return all
}

func rate(all vnode.Rate, part float64, servers int) vnode.Rate {
	return vnode.Rate(cut(uint64(all), part, servers))
}
func iops(all int, part float64, servers int) int { return int(cut(uint64(all), part, servers)) }

// cut takes a part of a limit: 0 stays none, and a limit never becomes none. A part of 0 was not ordered: it is an equal one.
func cut(all uint64, part float64, servers int) uint64 {
	if all == 0 {
		return 0
	}
	if part <= 0 {
		part = 1 / float64(servers)
	}
	return max(1, uint64(float64(all)*min(1, part)))
}

// arrived is for a node that was there before this agent, and of which no earlier agent left a record: this host was booted, or is a
// new server of the file system. The parts of the other servers are not known then, so this one begins with a floor. A single server
// begins with the whole.
func (s *split) arrived(w Wish) {
	if _, known := s.order.Parts[w.Node]; known || !shared(w) || w.Servers < 2 {
		return
	}
	s.order.Parts[w.Node] = floors(w)
	s.unknown[w.Node] = true
}

// resume begins with the parts that an earlier agent of this host enforced, which others count on.
func (s *split) resume(before []*kept, now time.Time) {
	s.at, s.order.Parts, s.unknown = now, map[string]allot.Rates{}, map[string]bool{}
	for _, h := range before {
		if h.Want.PerServer {
			continue
		}
		whole, part := h.Want, h.Part
		s.order.Parts[h.Node] = allot.Rates{
			allot.ReadBytes: of(float64(part.Read.Rate), float64(whole.Read.Rate)), allot.ReadOps: of(float64(part.Read.IOPS), float64(whole.Read.IOPS)),
			allot.WriteBytes: of(float64(part.Write.Rate), float64(whole.Write.Rate)), allot.WriteOps: of(float64(part.Write.IOPS), float64(whole.Write.IOPS)),
		}
	}
}

// of is a part of a whole; 0 of nothing.
func of(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return part / whole
}

// forget forgets a node: another one may have its name.
func (s *split) forget(node string) {
	delete(s.counted, node)
	delete(s.unknown, node)
	s.order.Parts = maps.Clone(s.order.Parts) // an order may be the allocator's own
	delete(s.order.Parts, node)
	s.tried = false // the enforced limits differ from the order now
}

// Splits reports whether the allocator splits an allowance of some node here.
func (s *Served) Splits() bool {
	for _, h := range s.held {
		if shared(h.Wish) {
			return true
		}
	}
	return false
}

// Report returns the report on the nodes' I/O since the last one, for the allocator. Nodes that have floors and do nothing are left out
// where the allocator takes that for granted.
func (s *Served) Report(host string, now time.Time) allot.Report {
	r := s.Confirm(host)
	r.Nodes = []allot.Use{}
	if s.split.counted == nil {
		s.split.counted = map[string]count{}
	}
	counted := s.way.counted()
	for name, h := range s.held {
		if !shared(h.Wish) {
			continue
		}
		u := allot.Use{Node: name, Unknown: s.split.unknown[name]}
		u.Part[allot.ReadBytes], u.Part[allot.ReadOps] = float64(h.Part.Read.Rate), float64(h.Part.Read.IOPS)
		u.Part[allot.WriteBytes], u.Part[allot.WriteOps] = float64(h.Part.Write.Rate), float64(h.Part.Write.IOPS)
		if sum, ok := counted(name); ok {
			is := count{now, sum}
			if was, ok := s.split.counted[name]; ok && now.After(was.at) {
				for k := range u.Used {
					u.Used[k] = max(0, is.sum[k]-was.sum[k]) / now.Sub(was.at).Seconds()
				}
			}
			s.split.counted[name] = is
		}
		if _, told := s.split.order.Parts[name]; told || u.Used != (allot.Rates{}) || h.Failed != "" || !s.split.floors(h.Wish) {
			r.Nodes = append(r.Nodes, u)
		}
	}
	return r
}

// Confirm is a report that tells only which order is enforced.
func (s *Served) Confirm(host string) allot.Report {
	r := allot.Report{Host: host, Filesystem: s.conf.Name, Failed: s.failed()}
	if s.split.tried {
		r.Order = s.split.order.Number
	}
	return r
}

// failed lists the nodes whose limits could not be set.
func (s *Served) failed() (all []string) {
	for name, h := range s.held {
		if h.Failed != "" {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// Obey enforces the order that answers a report, and tells whether there is something to confirm. sent is when the report was made: the
// allocator counts the server's silence from then on. An error names the nodes for which it could not be enforced; the next order
// tries again.
func (s *Served) Obey(ctx context.Context, o allot.Order, sent time.Time) (changed bool, err error) {
	if o.Number == "" {
		return false, nil
	}
	s.split.at = sent
	before := s.failed()
	if o.Number == s.split.order.Number && s.split.tried && len(before) == 0 {
		return false, nil
	}
	changed = o.Number != s.split.order.Number || !s.split.tried
	s.split.order = o
	for node := range o.Parts {
		delete(s.split.unknown, node)
	}
	if o.Floors { // of the others, too, the part is known now
		clear(s.split.unknown)
	}
	err = s.again(ctx)
	s.split.tried = true
	return changed || !slices.Equal(before, s.failed()), err
}

// Alone lowers parts that are above an equal one, if the allocator has not answered for long. A single server, whose parts only keep
// its capacity, gives each node its own rate.
func (s *Served) Alone(ctx context.Context, now time.Time) error {
	if now.Sub(s.split.at) < allot.Grace || len(s.split.order.Parts) == 0 {
		return nil
	}
	lower := maps.Clone(s.split.order.Parts)
	for node, parts := range lower {
		if h := s.held[node]; h != nil {
			for k := range parts {
				parts[k] = min(parts[k], 1/float64(max(1, h.Servers)))
				if h.Servers < 2 && parts[k] > 0 {
					parts[k] = 1
				}
			}
			lower[node] = parts
		}
	}
	if same := reflect.DeepEqual(lower, s.split.order.Parts); same && len(s.failed()) == 0 {
		return nil
	} else if !same {
		s.log.Warn("the allocator is not heard of: no node has more than an equal part here, and none less on a single server", "for", now.Sub(s.split.at).Round(time.Second))
		s.split.order, s.split.tried = allot.Order{Parts: lower}, false
	}
	return s.again(ctx)
}

// again sets the limits of all nodes as they are asked for now.
func (s *Served) again(ctx context.Context) error {
	var failed []error
	for name, h := range s.held {
		if err := s.hold(ctx, h.Wish); err != nil {
			failed = append(failed, fmt.Errorf("node %s: %w", name, err))
		}
	}
	return errors.Join(failed...)
}
