package top

import (
	"context"

	"berth/internal/host"
	"berth/internal/host/counters"
	"berth/internal/network/shape"
)

// Count is what was counted so far of one running node, or of a protected service.
type Count struct {
	Name, Kind, Class string
	counters.Counters
	Links []shape.Count // nil: not known, or not its own
}

// Counts reads the counters of what runs now, as they are: rates are made of them by whoever reads them repeatedly. of says of
// which nodes.
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
