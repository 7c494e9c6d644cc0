package block

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
	"berth/test/loop"
	"berth/test/testkit"
)

// again reads a step back from its journal record, as another process would.
func again(t *testing.T, e *Engine) step.Step {
	t.Helper()
	record, err := json.Marshal(e)
	testkit.Must(t, err)
	s, err := Kinds().Decode(e.Kind(), record)
	testkit.Must(t, err)
	return s
}

func live(t *testing.T, dir, name string) string {
	t.Helper()
	run := filepath.Join(dir, "nodes", name)
	testkit.Must(t, os.MkdirAll(run, 0o755))
	return run
}

func scheduler(t *testing.T, loop string) string {
	t.Helper()
	d, err := open("/sys", loop)
	testkit.Must(t, err)
	return strings.Join(strings.Fields(d.queue().Scheduler+" "+d.text(lowLatency)+" "+d.text(strict)+" of "+d.text(requests)), " ")
}

// TestBFQ switches a loop device to BFQ for two nodes. When the second one ends, the old scheduler is back.
func TestBFQ(t *testing.T) {
	loop, dir := loop.ForTest(t, 1<<20), t.TempDir()
	disk, err := Resolve("/sys", loop)
	testkit.Must(t, err)
	loans := Loans(filepath.Join(dir, "loans"))
	testkit.Must(t, disk.Look(Offers{Loans: loans}))
	if !disk.Queues[0].BFQ {
		t.Skip("no BFQ in this kernel")
	}
	for _, tt := range []struct {
		name, was, requests string // requests "": the scheduler's own number
		engine              vnode.Engine
		now                 string
	}{
		{"another scheduler", "none", "", vnode.BFQ, "bfq 0 0 of 1024"},
		{"another scheduler with few requests", "none", "32", vnode.BFQ, "bfq 0 0 of 1024"},
		{"BFQ with favours", "bfq", "", vnode.BFQ, "bfq 0 0 of 1024"},
		{"as asked", "bfq 0", "1024", vnode.BFQ, "bfq 0 0 of 1024"},
		{"more than asked", "bfq 0", "2048", vnode.BFQ, "bfq 0 0 of 2048"},
		{"strict from another", "none", "", vnode.BFQStrict, "bfq 0 1 of 1024"},
		{"strict from BFQ", "bfq 1", "100", vnode.BFQStrict, "bfq 0 1 of 1024"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			was := tt.was
			e := Engine{Sys: "/sys", Loans: loans, Disk: disk.Queues[0], Engine: tt.engine}
			scheduler1, favours, _ := strings.Cut(was, " ")
			testkit.Must(t, e.set("queue/scheduler", scheduler1))
			if favours != "" {
				testkit.Must(t, e.set(lowLatency, favours))
			}
			if tt.requests != "" {
				testkit.Must(t, e.set(requests, tt.requests))
			}
			was = scheduler(t, loop)
			a, b := e, e
			a.By, b.By = live(t, dir, "a"), live(t, dir, "b")
			for _, s := range []*Engine{&a, &b, &a} {
				testkit.Must(t, s.Do(t.Context()))
				testkit.Must(t, s.Verify(t.Context()))
			}
			if now := scheduler(t, loop); now != tt.now {
				t.Errorf("switched to %s", now)
			}
			testkit.Must(t, disk.Look(Offers{Loans: loans}))
			if l := disk.Queues[0].Loan; l == nil || l.Names() != "a, b" || l.Switched() != (scheduler1 != "bfq") {
				t.Errorf("the loan: %+v", l)
			}
			other := e
			other.Engine, other.V2, other.By = vnode.IOCost, dir, live(t, dir, "c")
			if err := other.Do(t.Context()); refuse.KindOf(err) != refuse.Busy {
				t.Errorf("another engine at the same time: %v", err)
			}
			testkit.Must(t, again(t, &a).Undo(t.Context()))
			if now := scheduler(t, loop); now != tt.now {
				t.Errorf("%s while one node is left", now)
			}
			for range 2 {
				testkit.Must(t, again(t, &b).Undo(t.Context()))
			}
			if now := scheduler(t, loop); now != was {
				t.Errorf("given back %s, it was %s", now, was)
			}
			left, err := os.ReadDir(string(loans))
			if err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}

	t.Run("nodes that vanish", func(t *testing.T) {
		e := Engine{Sys: "/sys", Loans: loans, Disk: disk.Queues[0], Engine: vnode.BFQ, By: live(t, dir, "gone")}
		testkit.Must(t, e.set("queue/scheduler", "none"))
		testkit.Must(t, e.Do(t.Context()))
		testkit.Must(t, os.Remove(e.By))
		next := e
		next.By = live(t, dir, "next")
		testkit.Must(t, next.Do(t.Context()))
		testkit.Must(t, next.Undo(t.Context()))
		if now := scheduler(t, loop); !strings.HasPrefix(now, "none of") {
			t.Errorf("given back %s", now)
		}
	})
	t.Run("somebody else chose", func(t *testing.T) {
		e := Engine{Sys: "/sys", Loans: loans, Disk: disk.Queues[0], Engine: vnode.BFQ, By: live(t, dir, "x")}
		testkit.Must(t, e.Do(t.Context()))
		testkit.Must(t, e.set("queue/scheduler", "kyber"))
		testkit.Must(t, e.Undo(t.Context()))
		if now := scheduler(t, loop); !strings.HasPrefix(now, "kyber of") {
			t.Errorf("given back %s", now)
		}
		testkit.Must(t, e.set("queue/scheduler", "none"))
	})
	t.Run("another disk of that number", func(t *testing.T) {
		e := Engine{Sys: "/sys", Loans: loans, Disk: disk.Queues[0], Engine: vnode.BFQ, By: live(t, dir, "y")}
		e.Disk.Seq--
		if err := e.Do(t.Context()); err == nil || !strings.Contains(err.Error(), "not the one that it was") {
			t.Errorf("switched another disk: %v", err)
		}
		testkit.Must(t, e.Undo(t.Context()))
	})
}

// TestIOCost checks what is written to io.cost's files, in a tree of plain files. The lab has a kernel with io.cost.
func TestIOCost(t *testing.T) {
	const model = "rbps=1 rseqiops=2 rrandiops=3 wbps=4 wseqiops=5 wrandiops=6"
	const auto = "8:0 ctrl=auto model=linear rbps=488636629 rseqiops=8932 rrandiops=8518 wbps=427891549 wseqiops=28755 wrandiops=21940"
	const atAuto = "8:0 enable=1 ctrl=auto rpct=0.00 rlat=250000 wpct=0.00 wlat=250000 min=1.00 max=10000.00"
	for name, tt := range map[string]struct {
		qos, model string // before
		ask        string
		on, after  Setup
	}{
		"on by somebody else, as the kernel chose": {
			atAuto, auto, model,
			Setup{QoS: atAuto, Model: "8:0 ctrl=user model=linear " + model},
			Setup{QoS: "8:0 enable=1 ctrl=auto", Model: "8:0 ctrl=auto"}, // each number that is written would make it ctrl=user
		},
		"never on": {"", "", model, Setup{QoS: "8:0 " + QoS, Model: "8:0 ctrl=user model=linear " + model}, Setup{QoS: "8:0 enable=0 ctrl=auto", Model: "8:0 ctrl=auto"}},
		"off": {
			"8:0 enable=0 ctrl=auto rpct=0.00", auto, model,
			Setup{QoS: "8:0 " + QoS, Model: "8:0 ctrl=user model=linear " + model},
			Setup{QoS: "8:0 enable=0 ctrl=auto", Model: "8:0 ctrl=auto"},
		},
		"on by somebody else": {
			"8:0 enable=1 ctrl=user rpct=95.00", "8:0 ctrl=user model=linear " + model, "",
			Setup{QoS: "8:0 enable=1 ctrl=user rpct=95.00", Model: "8:0 ctrl=user model=linear " + model},
			Setup{QoS: "8:0 enable=1 ctrl=user rpct=95.00", Model: "8:0 ctrl=user model=linear " + model},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, sys := t.TempDir(), drawn(t)
			write := func(name, text string) {
				if text != "" {
					text += "\n"
				}
				testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
			}
			write("io.cost.qos", tt.qos)
			write("io.cost.model", tt.model)
			e := &Engine{
				Sys: sys, Loans: Loans(filepath.Join(dir, "loans")), V2: dir, By: live(t, dir, "n"), Engine: vnode.IOCost, Model: tt.ask,
				Disk: Queue{Major: 8, Name: "sda", Seq: 1},
			}
			read := func() Setup {
				s, err := e.setup()
				testkit.Must(t, err)
				return s
			}
			testkit.Must(t, e.Do(context.Background()))
			testkit.Must(t, e.Verify(context.Background()))
			if diff := cmp.Diff(tt.on, read()); diff != "" {
				t.Error(diff)
			}
			testkit.Must(t, again(t, e).Undo(context.Background()))
			if diff := cmp.Diff(tt.after, read()); diff != "" {
				t.Error(diff)
			}
			if tt.qos != atAuto {
				return
			}
			write("io.cost.qos", "8:0 enable=0 ctrl=auto") // another program switches it off, and the disk is switched on again
			testkit.Must(t, e.switchOn(&Loan{Was: Setup{QoS: atAuto}}))
			if got := read().QoS; got != "8:0 enable=1 ctrl=auto" {
				t.Errorf("switched on again: %s", got)
			}
		})
	}
}

// TestModules: a scheduler that is a module, or built in, is there before it is loaded.
func TestModules(t *testing.T) {
	dir := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "modules.dep"), []byte("kernel/block/bfq.ko.xz:\n"), 0o600))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "modules.builtin"), []byte("kernel/block/kyber-iosched.ko\n"), 0o600))
	if !hasModule(dir, "bfq") || !hasModule(dir, "kyber-iosched") || hasModule(dir, "iosched") || hasModule(t.TempDir(), "bfq") {
		t.Error("bfq and kyber-iosched are there, and nothing else")
	}
	_ = hasModule("", "bfq") // of the running kernel: it may have it or not
}
