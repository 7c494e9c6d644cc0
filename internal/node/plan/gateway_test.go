package plan

import (
	"context"
	"slices"
	"strings"
	"testing"

	"berth/internal/spec/vnode"
	"berth/internal/storage/gateway"
	"berth/internal/sys/step"
)

// twoSteps is a gateway with a step before and a step after the node's process 1 is made, and nothing that is staged.
type twoSteps struct{ gateway.Gateway }

func (twoSteps) Plan(m vnode.Mount, s gateway.Source, to gateway.Node, _ string) (gateway.Way, error) {
	return gateway.Way{
		Before: []step.Step{named("before", m.Source, s.Path, to.Group)},
		After:  []step.Step{named("after", m.Target)},
	}, nil
}

type namedStep struct{ kind, text string }

func named(kind string, words ...string) *namedStep {
	return &namedStep{kind, strings.Join(append([]string{kind}, words...), " ")}
}

func (s *namedStep) Kind() string                 { return s.kind }
func (s *namedStep) String() string               { return s.text }
func (s *namedStep) Do(context.Context) error     { return nil }
func (s *namedStep) Verify(context.Context) error { return nil }
func (s *namedStep) Undo(context.Context) error   { return nil }

// TestGatewaySteps: a gateway's steps come when the groups are there but no process, and when the links work but no command.
func TestGatewaySteps(t *testing.T) {
	n, f := parse(t, full), facts(v1Host(), "crun")
	f.Command.Args = n.Command
	n.Mounts = append(n.Mounts, vnode.Mount{Source: "server:/export", Target: "/data", Gateway: vnode.VirtioFSGateway})
	f.Mounts = append(f.Mounts, gateway.Source{Path: "/export", FSType: "nfs4"})
	if _, _, err := All(n, f); err == nil {
		t.Error("a gateway that does not exist is planned")
	}
	f.Gateways[vnode.VirtioFSGateway] = twoSteps{}
	_, live, err := All(n, f)
	if err != nil {
		t.Fatal(err)
	}
	at := func(kind string) int {
		i := slices.IndexFunc(live, func(s step.Step) bool { return s.Kind() == kind })
		if i < 0 {
			t.Fatalf("no step %s", kind)
		}
		return i
	}
	order := []string{"cgroup.group", "before", "oci.create", "link.configure", "after", "oci.start"}
	if !slices.IsSortedFunc(order, func(a, b string) int { return at(a) - at(b) }) {
		t.Errorf("the steps are not in the order %q", order)
	}
	if got := live[at("before")].String(); got != "before server:/export /export "+GroupPath(f.Layout, n) {
		t.Errorf("got %q", got)
	}
}
