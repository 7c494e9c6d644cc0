package oci

import (
	"slices"
	"testing"
	"time"
)

// BenchmarkLife measures create, start and removal of a node with the standard configuration, runtimes in turn.
// It reports medians in milliseconds.
func BenchmarkLife(b *testing.B) {
	found := paths()
	if len(found) == 0 {
		b.Skip("neither runc nor crun is installed")
	}
	phases := []string{"create", "start", "remove"}
	times := map[string][]float64{}
	for b.Loop() {
		for _, r := range found {
			n := newNode(b, r, nil)
			steps := []func() error{
				func() error {
					if err := n.bundle.Do(b.Context()); err != nil {
						return err
					}
					return n.create.Do(b.Context())
				},
				func() error {
					if err := n.start.Do(b.Context()); err != nil {
						return err
					}
					return n.start.Verify(b.Context())
				},
				func() error { return n.create.Undo(b.Context()) },
			}
			for i, do := range steps {
				began := time.Now()
				if err := do(); err != nil {
					b.Fatal(err)
				}
				key := r.Name + "-" + phases[i] + "-ms"
				times[key] = append(times[key], float64(time.Since(began).Microseconds())/1000)
			}
		}
	}
	for key, list := range times {
		slices.Sort(list)
		b.ReportMetric(list[len(list)/2], key)
	}
}
