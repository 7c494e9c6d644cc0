package gatewaytest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/spec/vnode"
	"berth/internal/storage/gateway"
	"berth/internal/sys/layout"
	"berth/internal/sys/proc"
	"berth/internal/sys/step"
)

// bed is one node of a test, with one mount and a journal.
type bed struct {
	t       *testing.T
	suite   Suite
	source  Source
	mount   vnode.Mount
	to      gateway.Node
	way     gateway.Way
	journal *step.Journal
	helpers []proc.ID // all that were seen
	before  []string  // the content of the node's live folder before the first step
}

// bed plans a mount of the source; m has the keys of the spec that are not the source's.
func (s Suite) bed(t *testing.T, source Source, m vnode.Mount) *bed {
	t.Helper()
	top := tempDir(t)
	b := &bed{t: t, suite: s, source: source, mount: m, to: gateway.Node{Name: "node", UserNS: true, Layout: layout.New(top)}}
	dirs := b.to.Layout.Node(b.to.Name)
	target := filepath.Join(top, "target")
	b.mount.Source, b.mount.Target, b.mount.Options = source.Name, target, source.Options
	for _, dir := range []string{dirs.Stage(), target} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	looked, err := s.Gateway.Look(t.Context(), b.mount, b.to)
	if err != nil {
		t.Fatal(err)
	}
	if b.way, err = s.Gateway.Plan(b.mount, looked, b.to, filepath.Join(dirs.Stage(), "m0")); err != nil {
		t.Fatal(err)
	}
	boot, err := step.BootID()
	if err != nil {
		t.Fatal(err)
	}
	if b.journal, err = step.Create(dirs.Journal(), b.to.Name, boot); err != nil {
		t.Fatal(err)
	}
	b.before = b.files()
	t.Cleanup(b.killHelpers)
	return b
}

func (b *bed) steps() []step.Step { return slices.Concat(b.way.Before, b.way.After) }

// start does all steps by the journal and starts the node between them.
func (b *bed) start() (Node, error) {
	n, err := b.startUntil(func(st step.Step) error {
		err := b.journal.Do(b.t.Context(), st)
		b.noteHelpers(st)
		return err
	})
	if err == nil {
		err = b.journal.SetPhase(step.Up)
	}
	return n, err
}

func (b *bed) startUntil(do func(step.Step) error) (Node, error) {
	for _, st := range b.way.Before {
		if err := do(st); err != nil {
			return nil, err
		}
	}
	n, err := b.suite.Start(b.t, b.to, b.way, b.source.Beneath)
	if err != nil {
		return nil, err
	}
	b.t.Cleanup(n.Kill)
	for _, st := range b.way.After {
		if err := do(st); err != nil {
			return n, err
		}
	}
	return n, nil
}

func (b *bed) noteHelpers(steps ...step.Step) {
	for _, h := range gateway.Helpers(steps) {
		b.helpers = append(b.helpers, h.Process())
	}
}

// killHelpers ends the processes that a failed test left.
func (b *bed) killHelpers() {
	for _, id := range b.helpers {
		if pidfd, err := id.Open(); err == nil {
			_ = proc.Signal(pidfd, unix.SIGKILL)
			pidfd.Close()
		}
	}
}

// end undoes all steps, as another process does: it reads the journal first.
func (b *bed) end() {
	b.t.Helper()
	if err := b.reopened().Close(b.t.Context()); err != nil {
		b.t.Errorf("end: %v", err)
	}
	b.nothingLeft()
}

func (b *bed) reopened() *step.Journal {
	b.t.Helper()
	j, err := step.Open(b.to.Layout.Node(b.to.Name).Journal(), b.suite.Gateway.Kinds())
	if err != nil {
		b.t.Fatal(err)
	}
	return j
}

// decoded returns a step as its journal record has it.
func (b *bed) decoded(st step.Step) step.Step {
	b.t.Helper()
	record, err := json.Marshal(st)
	if err != nil {
		b.t.Fatal(err)
	}
	again, err := b.suite.Gateway.Kinds().Decode(st.Kind(), record)
	if err != nil {
		b.t.Fatal(err)
	}
	return again
}

// nothingLeft checks that the host has no mount, process or file of the node any more.
func (b *bed) nothingLeft() {
	b.t.Helper()
	b.hidden()
	for _, id := range b.helpers {
		if id.Alive() {
			b.t.Errorf("helper %d still runs", id.PID)
		}
	}
	if left := b.files(); !slices.Equal(left, b.before) {
		b.t.Errorf("left in the node's live folder: %q, before %q", left, b.before)
	}
	if text, err := os.ReadFile(b.source.Dir + "/file"); err != nil && !strings.HasSuffix(b.t.Name(), "source_gone") || err == nil && string(text) != "data\n" {
		b.t.Errorf("the source is not as it was: %q, %v", text, err)
	}
}

// hidden checks that the host sees no mount of the node.
func (b *bed) hidden() {
	b.t.Helper()
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(info), b.to.Layout.Run) || strings.Contains(string(info), b.source.Dir) {
		b.t.Errorf("the host sees a mount of the node: %v\n%s", err, info)
	}
}

func (b *bed) files() []string {
	b.t.Helper()
	dirs := b.to.Layout.Node(b.to.Name)
	entries, err := os.ReadDir(dirs.Run)
	if err != nil {
		b.t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		if name := e.Name(); name != filepath.Base(dirs.Journal()) && name != filepath.Base(dirs.PIDFile()) {
			all = append(all, name)
		}
	}
	return all
}
