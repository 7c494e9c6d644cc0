package top

import (
	"context"

	"berth/internal/host"
	"berth/internal/host/counters"
	"berth/internal/network/shape"
)

// Count has the counters of one running node, or of a protected service, until now.
type Count struct {
	Name, Kind, Class string
	counters.Counters
	Links []shape.Count // nil: not known, or not its own
}

// Counts reads the present counters of the running nodes for which of is true, and of protected services. A caller that reads
// them repeatedly can work out rates.
func (s *Sampler) Counts(ctx context.Context, of func(name string) bool) (all []Count, err error) {
	cg, err := host.ReadCgroups("/proc")
	if err != nil {
		return nil, err
	}
	m := counters.NewMeter(cg, anyBFQ())
	subjects, err := s.subjects(ctx)
	if err != nil {
		return nil, err
	}
	for _, sub := range subjects {
		if sub.kind == KindNode && !of(sub.name) {
			continue
		}
		if r, ok := sub.read(m); ok {
			all = append(all, Count{sub.name, sub.kind, string(sub.class), r.Counters, r.links})
		}
	}
	return all, nil
}

// DiskNames gives disks their names.
func DiskNames() func(major, minor uint32) string { return diskNames{}.of }
