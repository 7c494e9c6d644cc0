package iosync

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"testing"

	"berth/internal/sys/fork"
)

// TestGateSays: what is wrong with one process does not hide what is wrong with another, or with the gate.
func TestGateSays(t *testing.T) {
	dir := t.TempDir()
	says, err := newGateSays(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []*exec.Cmd
	for range 3 {
		c := exec.Command("sleep", "100")
		if err := fork.Start(c); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill(); _ = fork.Wait(c) })
		all = append(all, c)
	}
	pid := func(i int) int { return all[i].Process.Pid }
	for i, tt := range []struct {
		do   func()
		want string
	}{
		{func() {}, ""},
		{func() { says.wrong(pid(0), "first") }, "first"},
		{func() { says.wrong(pid(1), "second") }, "first; and so with 1 more processes"},
		{func() { says.wrong(0, "gate") }, "gate; first; and so with 1 more processes"},
		{func() { says.wrong(pid(2), "") }, "gate; first; and so with 1 more processes"}, // of which nothing was said
		{func() { says.wrong(pid(0), "") }, "gate; second"},
		{func() { _ = all[1].Process.Kill(); _ = fork.Wait(all[1]) }, "gate"},
		{func() { says.wrong(pid(1), "ended") }, "gate"},
		{func() { says.wrong(pid(2), "third") }, "gate; third"},
		{func() { says.wrong(0, "") }, "third"},
		{func() { says.wrong(pid(2), "another") }, "another"},
	} {
		tt.do()
		if got, err := gateWrong(dir); got != tt.want || err != nil {
			t.Errorf("%d: %q, %v; want %q", i, got, err, tt.want)
		}
	}
	if len(says.Wrong) != 1 {
		t.Errorf("it keeps %v", says.Wrong)
	}
}

// failing is a gate that cannot be told of new groups.
type failing struct{ told []string }

func (f *failing) Tell(map[netip.Addr]string) error { return nil }
func (f *failing) Close() error                     { return nil }

func (f *failing) Anew(node string) error {
	f.told = append(f.told, node)
	return errors.New("no memory")
}

// TestAnewAgain: a gate that could not be told of a new group is told again.
func TestAnewAgain(t *testing.T) {
	f := &failing{}
	g := &gated{gate: f, anew: map[string]bool{}}
	h := &kept{}
	h.Node = "a"
	for _, was := range []*kept{nil, h} {
		if err := g.hold(t.Context(), h, was); err == nil {
			t.Error("it does not say so")
		}
	}
	if got := fmt.Sprint(f.told); got != "[a a]" {
		t.Errorf("told %s", got)
	}
}
