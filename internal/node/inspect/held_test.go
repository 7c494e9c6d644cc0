package inspect

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"berth/internal/runner"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// guest is a machine whose guest has so much memory.
type guest struct {
	runner.Resizer
	atBoot, has int64
	err         error
	asked       int
}

func (g *guest) AtBoot() int64 { return g.atBoot }

func (g *guest) Memory(context.Context) (int64, error) { g.asked++; return g.has, g.err }

func (g *guest) Resize(from, to int64) (step.Step, error) { return asked{from, to}, nil }

// asked is a step that asks a guest for memory.
type asked struct{ from, to int64 }

func (asked) Kind() string                 { return "asked" }
func (asked) String() string               { return "asked" }
func (asked) Do(context.Context) error     { return nil }
func (asked) Verify(context.Context) error { return nil }
func (asked) Undo(context.Context) error   { return nil }

// TestRegive: what a guest has taken back is asked for again, and a guest that cannot say what it has is not asked for anything.
func TestRegive(t *testing.T) {
	n := &vnode.Node{Kind: vnode.MachineKind}
	n.Machine.Memory = 256
	for name, c := range map[string]struct {
		guest guest
		want  []step.Step
		err   refuse.Kind
	}{
		"has it":       {guest: guest{atBoot: 512, has: 256}},
		"took it back": {guest: guest{atBoot: 512, has: 512}, want: []step.Step{asked{512, 256}}},
		"paused":       {guest: guest{atBoot: 512, err: errors.New("it is paused")}, err: refuse.Busy},
		"older":        {guest: guest{has: 512}},
	} {
		var d Drift
		if err := d.Regive(t.Context(), n, func(string) (runner.Holder, error) { return &c.guest, nil }); refuse.KindOf(err) != c.err || !slices.Equal(d.Steps, c.want) {
			t.Errorf("%s: %v, %v", name, d.Steps, err)
		}
	}
}

// TestGuestMemory: what a guest has is shown beside what was asked for. One that cannot be asked has lost nothing, and where many nodes are
// looked at, as the metrics do, none is asked.
func TestGuestMemory(t *testing.T) {
	const mib = 1 << 20
	n := &vnode.Node{Kind: vnode.MachineKind}
	n.Machine.Memory = 512 * mib
	shown := func(ctx context.Context, g *guest) string {
		l := guestMemory(ctx, n, []step.Step{g})
		switch {
		case l == nil:
			return "nothing"
		case l.Holds:
			return "holds"
		case l.Why != "" || l.Asked != "512MiB":
			return "odd"
		}
		_, why, _ := strings.Cut(l.Note, "not read: ")
		return l.ReadBack + why
	}
	once := Once(t.Context(), layout.Layout{})
	for name, c := range map[string]struct {
		ctx   context.Context
		guest guest
		shown string
		asked int
	}{
		"has it":        {t.Context(), guest{atBoot: 512 * mib, has: 512 * mib}, "holds", 1},
		"has less":      {t.Context(), guest{atBoot: 512 * mib, has: 256 * mib}, "256MiB", 1},
		"paused":        {t.Context(), guest{atBoot: 512 * mib, err: errors.New("it is paused")}, "it is paused", 1},
		"older":         {t.Context(), guest{has: 512 * mib}, "nothing", 0},
		"of many nodes": {once, guest{atBoot: 512 * mib, has: 256 * mib}, "nothing", 0},
	} {
		if got := shown(c.ctx, &c.guest); got != c.shown || c.guest.asked != c.asked {
			t.Errorf("%s: %q, asked %d times; want %q, %d", name, got, c.guest.asked, c.shown, c.asked)
		}
	}
}
