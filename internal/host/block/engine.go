package block

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Kinds returns the step kinds of this package, for reading journals.
func Kinds() step.Kinds {
	return step.Kinds{"block.engine": func() step.Step { return &Engine{} }}
}

// Engine is a step that switches a disk to an engine that honours weights, or joins the nodes for which it was switched
// already. Its Undo takes the node out again; after the last one the disk gets its old settings back.
type Engine struct {
	Sys    string       `json:"sys"`   // root of sysfs
	Loans  Loans        `json:"loans"` //
	Disk   Queue        `json:"disk"`
	Engine vnode.Engine `json:"engine"`
	Model  string       `json:"model,omitempty"` // for iocost; "": the disk's own model
	V2     string       `json:"v2,omitempty"`    // mount of the cgroup v2 tree, for iocost
	By     string       `json:"by"`              // the node's live folder, or the journal of a protected service

	// These fields find the disk after a reboot, when Disk is no longer valid: for steps that are done again then.
	ID    string `json:"id,omitempty"`    // the disk's identity: "wwid …" (device.Identity)
	Asked string `json:"asked,omitempty"` // the device or folder that was asked for
	Mount string `json:"mount,omitempty"` // where the file system of that folder was mounted
}

// Switches reports whether one of the steps switches a disk to another engine, or joins the nodes that had it switched.
func Switches(steps []step.Step) bool {
	return slices.ContainsFunc(steps, func(s step.Step) bool { _, ok := s.(*Engine); return ok })
}

// QoS is what Berth asks of io.cost: give the disk exactly as much as its model says. Then shares are exact. A model that
// says too little costs throughput; one that says too much weakens the weights.
//
// io.cost plans in periods of twice the latency target (ioc_refresh_period_us in the kernel's blk-iocost.c), and its timers
// are late by up to a tenth of a period. A period of 100 ms is longer than a request of 1 MiB takes on a disk of 20 MB/s,
// and short enough that requests issued by others in the meantime do not delay a service for long (docs/isolation.md).
const QoS = "enable=1 ctrl=user rpct=0.00 rlat=50000 wpct=0.00 wlat=50000 min=100.00 max=100.00"

// Kind is "block.engine".
func (e *Engine) Kind() string { return "block.engine" }

// String is "sda to bfq (was mq-deadline; given back when the last node that asked for it ends)".
func (e *Engine) String() string {
	text, note := e.Line()
	return text + " (" + note + ")"
}

// Line returns String's text without the note, and the note.
func (e *Engine) Line() (text, note string) {
	was := e.Disk.Scheduler
	if e.Engine == vnode.IOCost {
		was = "off"
		if e.Disk.CostOn {
			was = "on"
		}
	}
	if e.Disk.Loan != nil {
		was = "switched already"
	}
	return e.Disk.Name + " to " + string(e.Engine), "was " + was + "; given back when the last node that asked for it ends"
}

// Do records what the disk has in a loan, and switches it.
func (e *Engine) Do(context.Context) error {
	held, err := e.Loans.lock()
	if err != nil {
		return err
	}
	defer held.Close()
	if ok, err := e.there(); err != nil || !ok {
		return errors.Join(err, fmt.Errorf("switch %s to %s: the disk is not the one that it was", e.Disk.Name, e.Engine))
	}
	l, err := e.Loans.Of(e.Disk)
	if err != nil {
		return err
	}
	if l != nil && len(l.By) == 0 { // its nodes ended without giving it back
		if err := e.giveBack(l); err != nil {
			return err
		}
		l = nil
	}
	if l == nil {
		if l, err = e.newLoan(); err != nil {
			return err
		}
	}
	if err := Conflict(e.Disk, l, e.Engine, e.Model); err != nil {
		return err
	}
	if !slices.Contains(l.By, e.By) {
		l.By = append(l.By, e.By)
	}
	if err := e.Loans.write(e.Disk, l); err != nil {
		return err
	}
	fault.Point("engine on loan")
	return e.switchOn(l)
}

// Conflict refuses an engine or a model other than the one to which the disk was switched for other nodes.
func Conflict(q Queue, l *Loan, want vnode.Engine, model string) error {
	switch {
	case l == nil || len(l.By) == 0:
		return nil
	case l.Engine != want:
		return refuse.Busyf("disk %s is switched to %s for node %s: it cannot be shared out by %s too", q.Name, l.Engine, l.Names(), want)
	case model != "" && l.Model != model:
		return refuse.Busyf("disk %s has another model for node %s: %s", q.Name, l.Names(), l.Model)
	}
	return nil
}

// newLoan returns a loan with the disk's current settings.
func (e *Engine) newLoan() (*Loan, error) {
	boot, err := step.BootID()
	if err != nil {
		return nil, err
	}
	was, err := e.setup()
	return &Loan{Boot: boot, Engine: e.Engine, Model: e.Model, Was: was}, err
}

func (e *Engine) setup() (s Setup, err error) {
	if e.Engine == vnode.IOCost {
		if s.QoS, err = costLine(e.V2, "io.cost.qos", e.Disk.Number()); err == nil {
			s.Model, err = costLine(e.V2, "io.cost.model", e.Disk.Number())
		}
		return s, err
	}
	d, err := byNumber(e.Sys, e.Disk.Major, e.Disk.Minor)
	if err != nil {
		return s, err
	}
	s.Scheduler, s.LowLatency, s.Requests = d.queue().Scheduler, d.text(lowLatency), d.text(requests)
	if e.Engine == vnode.BFQStrict {
		s.Strict = d.text(strict)
	}
	return s, nil
}

// lowLatency is BFQ's switch that favours interactive processes, whatever their weight
// (Documentation/block/bfq-iosched.rst). Shares hold when it is off.
const lowLatency = "queue/iosched/low_latency"

// strict is BFQ's switch that gives the disk one request at a time. Then BFQ decides what comes next, and not the order in
// which requests wait in the disk (bfq_dispatch_request).
const strict = "queue/iosched/strict_guarantees"

// requests is how many requests a disk's scheduler holds at most. BFQ lets a group have no more than its share of them
// (bfq_limit_depth, bfqq_request_over_limit; Linux 5.17). A group that wants more nearly stops until some are done, and its
// share of the disk goes to others. In the lab, nodes with weights 40:20:20:20 and 64 requests in flight each got
// 60:13:13:13 of a disk with 256 (the kernel's own number), and 40:20:20:20 with 512 and more.
const requests = "queue/nr_requests"

// BFQRequests is the number to which Berth raises a smaller one: a fifth of it is 204.
const BFQRequests = 1024

func (e *Engine) switchOn(l *Loan) error {
	if e.Engine == vnode.IOCost {
		if l.Model != "" {
			if err := e.cost("io.cost.model", "ctrl=user model=linear "+l.Model); err != nil {
				return err
			}
			fault.Point("io.cost has a model")
		}
		if !strings.Contains(l.Was.QoS, " enable=1") {
			return e.cost("io.cost.qos", QoS)
		}
		// It was on before, in its owner's way, and stays so. Another program may have switched it off since.
		now, err := costLine(e.V2, "io.cost.qos", e.Disk.Number())
		if err != nil || strings.Contains(now, " enable=1") {
			return err
		}
		return e.cost("io.cost.qos", asBefore(l.Was.QoS))
	}
	if err := e.set("queue/scheduler", string(vnode.BFQ)); err != nil {
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return refuse.Cannotf("modprobe bfq, or boot a kernel with CONFIG_IOSCHED_BFQ", "switch %s to bfq: %w", e.Disk.Name, err)
		}
		return err
	}
	fault.Point("scheduler switched")
	now, err := e.setup()
	if err != nil {
		return err
	}
	if !enough(now) {
		if err := e.set(requests, strconv.Itoa(BFQRequests)); err != nil {
			return err
		}
		fault.Point("scheduler enlarged")
	}
	if err := e.set(lowLatency, "0"); err != nil || e.Engine != vnode.BFQStrict {
		return err
	}
	fault.Point("favours switched off")
	return e.set(strict, "1")
}

// enough reports whether BFQ holds enough requests for what nodes have in flight.
func enough(s Setup) bool {
	n, err := strconv.Atoi(s.Requests)
	return err == nil && n >= BFQRequests
}

// Verify reads back that the engine is on.
func (e *Engine) Verify(context.Context) error {
	if e.Engine == vnode.IOCost {
		qos, err := costLine(e.V2, "io.cost.qos", e.Disk.Number())
		if err == nil && !strings.Contains(qos, " enable=1") {
			err = fmt.Errorf("switch %s to iocost: the kernel says %q", e.Disk.Name, qos)
		}
		if err != nil || e.Model == "" {
			return err
		}
		model, err := costLine(e.V2, "io.cost.model", e.Disk.Number())
		if err == nil && slices.ContainsFunc(strings.Fields(e.Model), func(word string) bool { return !slices.Contains(strings.Fields(model), word) }) {
			err = fmt.Errorf("switch %s to iocost with the model %s: the kernel has %q", e.Disk.Name, e.Model, model)
		}
		return err
	}
	s, err := e.setup()
	if err == nil && (s.Scheduler != string(vnode.BFQ) || s.LowLatency != "0" || !enough(s) || e.Engine == vnode.BFQStrict && s.Strict != "1") {
		err = fmt.Errorf("switch %s to %s: the kernel says scheduler %s, low_latency %s, strict_guarantees %s, nr_requests %s",
			e.Disk.Name, e.Engine, s.Scheduler, s.LowLatency, s.Strict, s.Requests)
	}
	return err
}

// Held reports whether the disk is still the one that was switched, and on loan to By since this boot.
func (e *Engine) Held() (bool, error) {
	if ok, err := e.there(); err != nil || !ok {
		return false, err
	}
	l, err := e.Loans.Of(e.Disk)
	return l != nil && slices.Contains(l.By, e.By), err
}

// Forget takes By out of the loan if the disk is gone. It does nothing while the disk is there.
func (e *Engine) Forget(ctx context.Context) error {
	if ok, err := e.there(); err != nil || ok {
		return err
	}
	return e.Undo(ctx)
}

// Undo takes By out of the loan. After the last one the disk gets its old settings back, unless it is gone.
func (e *Engine) Undo(context.Context) error {
	held, err := e.Loans.lock()
	if err != nil {
		return err
	}
	defer held.Close()
	l, err := e.Loans.Of(e.Disk)
	if err != nil {
		return err
	}
	if l == nil {
		return e.Loans.remove(e.Disk)
	}
	l.By = slices.DeleteFunc(l.By, func(dir string) bool { return dir == e.By })
	if len(l.By) > 0 {
		return e.Loans.write(e.Disk, l)
	}
	return e.giveBack(l)
}

// giveBack restores the disk's old settings, except those that another program has changed meanwhile, and ends the loan.
func (e *Engine) giveBack(l *Loan) error {
	there, err := e.there()
	if err != nil {
		return err
	}
	if there {
		last := *e
		last.Engine = l.Engine
		if err := last.restore(l.Was); err != nil {
			return fmt.Errorf("give %s back what it had: %w", e.Disk.Name, err)
		}
		fault.Point("engine given back")
	}
	return e.Loans.remove(e.Disk)
}

func (e *Engine) restore(was Setup) error {
	now, err := e.setup()
	if err != nil {
		return err
	}
	if e.Engine == vnode.IOCost {
		qos := asBefore(was.QoS)
		if was.QoS == "" {
			qos = "enable=0 " + qos
		}
		if err := e.cost("io.cost.qos", qos); err != nil || now.Model == was.Model {
			return err
		}
		return e.cost("io.cost.model", asBefore(was.Model))
	}
	switch {
	case now.Scheduler == was.Scheduler && was.Scheduler != string(vnode.BFQ): // an earlier attempt restored it and was killed
		return e.restoreRequests(was)
	case now.Scheduler != string(vnode.BFQ):
		return nil
	case was.Scheduler != string(vnode.BFQ):
		if err := e.set("queue/scheduler", was.Scheduler); err != nil {
			return err
		}
		fault.Point("scheduler given back")
		return e.restoreRequests(was)
	}
	if err := e.restoreRequests(was); err != nil {
		return err
	}
	if err := e.set(lowLatency, was.LowLatency); err != nil || e.Engine != vnode.BFQStrict {
		return err
	}
	return e.set(strict, was.Strict)
}

// asBefore is what is written to io.cost for a disk that had this line: without its numbers where the kernel had chosen them, because each that
// is written makes all of them the user's (block/blk-iocost.c: ioc_qos_write, ioc_cost_model_write), and as the kernel chooses where it had none.
func asBefore(line string) string {
	_, was, _ := strings.Cut(line, " ")
	switch {
	case was == "":
		return "ctrl=auto"
	case strings.Contains(was, "ctrl=auto"):
		return strings.Join(slices.DeleteFunc(strings.Fields(was), func(word string) bool {
			return word != "ctrl=auto" && !strings.HasPrefix(word, "enable=")
		}), " ")
	}
	return was
}

func (e *Engine) restoreRequests(was Setup) error {
	now, err := e.setup()
	if err != nil || was.Requests == "" || now.Requests == was.Requests {
		return err
	}
	return e.set(requests, was.Requests)
}

// there reports whether the disk is still the one that the step was planned for.
func (e *Engine) there() (bool, error) {
	d, err := byNumber(e.Sys, e.Disk.Major, e.Disk.Minor)
	if refuse.KindOf(err) == refuse.NotFound || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return d.name == e.Disk.Name && d.seq() == e.Disk.Seq, nil
}

// set writes a sysfs file of the disk.
func (e *Engine) set(name, value string) error {
	return write(filepath.Join(e.Sys, "dev/block", e.Disk.Number(), name), value)
}

// cost writes the disk's line to a file of io.cost.
func (e *Engine) cost(name, line string) error {
	return write(filepath.Join(e.V2, name), e.Disk.Number()+" "+line)
}

func write(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		_, err = f.WriteString(text)
		_ = f.Close() // the write reports all errors
	}
	if err != nil {
		return fmt.Errorf("write %q to %s: %w", text, file, err)
	}
	return nil
}
