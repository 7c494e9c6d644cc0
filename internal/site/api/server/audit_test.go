package server

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/node"
	"berth/internal/site/api"
	"berth/internal/site/audit"
	"berth/internal/spec/roles"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// kept is an audit that a test reads.
type kept struct {
	mu    sync.Mutex
	lines []audit.Line
	more  chan struct{}
	full  error // of lines that say that an act begins
}

func (k *kept) keep(line audit.Line, err error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.full != nil && line.Result == audit.Begins {
		return k.full
	}
	if err != nil {
		line.Result, line.Error = audit.Failed, err.Error()
	}
	line.From = ""
	k.lines = append(k.lines, line)
	if k.more != nil {
		k.more <- struct{}{}
	}
	return nil
}

func (k *kept) all() []audit.Line {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lines
}

// acting is a host whose acts look at the audit as it is while they work.
type acting struct {
	fake
	during func()
}

func (a *acting) Labels(string) (map[string]string, error) { return nil, refuse.NotFoundf("none") }

func (a *acting) Apply(context.Context, string, []byte, bool) ([]*node.Outcome, error) {
	a.during()
	return nil, nil
}

func (a *acting) ApplyTemplate(context.Context, roles.Who, string, string, map[string]any, time.Duration) (*node.Outcome, error) {
	a.during()
	return &node.Outcome{}, nil
}

func (a *acting) Start(context.Context, string, roles.Owner) (bool, error) { return true, nil }

func (a *acting) Remove(context.Context, string, bool, roles.Owner) error { panic("a fault") }

// TestAuditSays: an act has a line before it begins and one when it has ended, with whom it was for and what was asked; also one that
// panics.
func TestAuditSays(t *testing.T) {
	ann := roles.Who{Name: "ann", Role: roles.Operator, Via: roles.ViaTLS}
	for _, tc := range []struct {
		who                roles.Who
		method, path, body string
		status             int
		want               audit.Line
		result, failed     string
	}{
		{admin(), "POST", "/v1/nodes", "name: a\nimage: host\ncommand: [/bin/true]\n---\nname: b\nimage: host\ncommand: [/bin/true]\n", 200, audit.Line{Act: roles.NodeApply, On: "a b"}, "", ""},
		{ann, "POST", "/v1/templates/job/nodes", `{"name":"j1","parameters":{"cpus":2}}`, 200, audit.Line{Act: roles.NodeMake, On: "j1", Detail: `job {"cpus":2}`}, "", ""},
		{admin(), "DELETE", "/v1/nodes/n?force=true", "", 500, audit.Line{Act: roles.NodeEnd, On: "n", Detail: "force=true"}, audit.Failed, "the agent failed; its log says how"},
	} {
		k := &kept{}
		h := &acting{during: func() {
			if all := k.all(); len(all) != 1 || all[0].Result != audit.Begins {
				t.Errorf("%s %s: while it works the audit has %+v", tc.method, tc.path, all)
			}
		}}
		if answer := asked(&Server{Host: h, Audit: k.keep}, tc.who, tc.method, tc.path, tc.body); answer.Code != tc.status {
			t.Errorf("%s %s: %d %s", tc.method, tc.path, answer.Code, answer.Body)
		}
		first := tc.want
		first.Begun = true
		first.Who, first.Role, first.Via, first.Result = tc.who.Name, tc.who.Role, tc.who.Via, audit.Begins
		last := first
		last.Result, last.Error = tc.result, tc.failed
		if diff := cmp.Diff([]audit.Line{first, last}, k.all()); diff != "" {
			t.Errorf("%s %s:\n%s", tc.method, tc.path, diff)
		}
	}
}

// TestAuditOfCommands: the words of a command are kept before it runs, and its exit code; those of one that is refused, too.
func TestAuditOfCommands(t *testing.T) {
	k := &kept{more: make(chan struct{}, 9)}
	h := &runs{program: []string{"/bin/sh", "-c", `exit "$1"`, "berth"}}
	eve := roles.Who{Name: "eve", Role: roles.Viewer, Via: roles.ViaTLS}
	own, others := serving(t, &Server{Host: h, Audit: k.keep}, admin()), serving(t, &Server{Host: h, Audit: k.keep}, eve)
	wait := func(n int) {
		for range n {
			select {
			case <-k.more:
			case <-time.After(testkit.Bound()):
				t.Fatalf("the audit has %+v", k.all())
			}
		}
	}
	ask(t, own, api.Start{Args: []string{"0", "a b"}})
	wait(2)
	ask(t, own, api.Start{Args: []string{"3"}})
	wait(2)
	ask(t, others, api.Start{Args: []string{"run", "x"}})
	wait(1)
	type row struct {
		Who, Detail, Result string
		Exit                *int
	}
	var got []row
	for _, l := range k.all() {
		got = append(got, row{l.Who, l.Detail, l.Result, l.Exit})
	}
	want := []row{
		{"root", `["0" "a b"]`, audit.Begins, nil},
		{"root", `["0" "a b"]`, "", new(0)},
		{"root", `["3"]`, audit.Begins, nil},
		{"root", `["3"]`, audit.Failed, new(3)},
		{"eve", `["run" "x"]`, audit.Failed, nil},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestSpent: whose acts the audit takes no more of is refused, before the act.
func TestSpent(t *testing.T) {
	ann := roles.Who{Name: "ann", Role: roles.Operator, Via: roles.ViaTLS}
	k := &kept{}
	s := &Server{Host: &acting{during: func() { t.Error("it was done") }}, Audit: k.keep, Spent: func(w roles.Who) bool { return w == ann }}
	if answer := asked(s, ann, "POST", "/v1/templates/job/nodes", `{"name":"j1"}`); answer.Code != 429 {
		t.Errorf("%d %s", answer.Code, answer.Body)
	}
	if all := k.all(); len(all) != 1 || all[0].Begun || all[0].Error == "" {
		t.Errorf("the audit has %+v", all)
	}
}

// TestNotKept: a command whose line the audit cannot take does not run, and says so by its websocket.
func TestNotKept(t *testing.T) {
	k := &kept{full: &refuse.Error{Kind: refuse.Cannot, What: "the audit is full", Remedy: "make room"}}
	ws := serving(t, &Server{Host: &runs{program: []string{"/bin/sh", "-c", "echo it runs", "berth"}}, Audit: k.keep}, admin())
	last := ask(t, ws, api.Start{Args: []string{"stop", "x"}})
	if last.Problem == nil || last.Problem.Status != 507 || last.Problem.Code != int(refuse.Cannot) || last.Problem.Remedy != "make room" {
		t.Errorf("%+v", last)
	}
	testkit.Eventually(t, "its refusal is kept", func() bool { return len(k.all()) > 0 })
	if all := k.all(); len(all) != 1 || all[0].Begun || all[0].Error == "" {
		t.Errorf("the audit has %+v", all)
	}
}
