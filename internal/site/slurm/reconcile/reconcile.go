// Package reconcile makes Slurm and the nodes of a host agree again where Slurm's programs could not. The agent gives back to Slurm nodes
// that are down because something of Berth's failed, reports nodes that do not run any more, ends nodes that Slurm does not know as up, and
// asks Slurm to power up nodes that are to wait for jobs.
package reconcile

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"berth/internal/site/slurm/control"
	"berth/internal/site/slurm/settings"
	"berth/internal/spec/roles"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
)

// Nodes are those of this host.
type Nodes interface {
	Names() ([]string, error)
	Spec(name string) (*vnode.Node, error)
	// Made returns when a node was made.
	Made(name string) (time.Time, error)
	// RemoveMade removes a node that was made at this time, also if it runs. If another is there now, that is NotFound.
	RemoveMade(ctx context.Context, name string, made time.Time) error
	// Ended says how a node ended, by itself or otherwise; "" if it runs, or is being made.
	Ended(ctx context.Context, name string) string
}

// Host is a host whose nodes are Slurm's.
type Host struct {
	Name   string
	Slots  int // by its agent's file
	Layout layout.Layout
	Nodes  Nodes
	Log    *slog.Logger

	unwanted map[string]time.Time // nodes that Slurm did not know as up the last time, and when they were made
	missing  map[string]bool      // nodes that Slurm knew as up the last time, and that were not there
	failures map[string]int       // how often nodes were given back that did not come up since
	resting  map[string]int       // nodes that are powered down and idle: for how many looks now
	said     string               // the last error, which is told once
}

// mostWait is the longest time until a node that failed is given back.
const mostWait = time.Hour

// Slurm has no event for a change of a node's state, so it is asked: not often, and only on a host that slurm.yaml names.
const (
	longest  = 30 * time.Second
	shortest = 5 * time.Second
)

// Run looks again and again, until ctx ends.
func (h *Host) Run(ctx context.Context) error {
	for {
		pause := longest
		s, err := settings.Read(h.Layout, settings.Path(h.Layout))
		switch _, gone := os.Stat(settings.Path(h.Layout)); {
		case errors.Is(gone, fs.ErrNotExist): // no host of Slurm's
		case err != nil:
			h.tell(err)
		default:
			pause = min(max(time.Duration(s.Power.SuspendTimeout)/2, shortest), longest)
			h.tell(h.look(ctx, s))
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// tell logs an error that is not the one of the last time.
func (h *Host) tell(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != h.said && text != "" {
		h.Log.Warn("the nodes of Slurm could not be looked at", "error", text)
	}
	h.said = text
}

// look compares the nodes of this host with Slurm's record of them.
func (h *Host) look(ctx context.Context, s *settings.Settings) error {
	var slots []string
	template := ""
	for _, g := range s.Hosts {
		if slices.Contains(g.Hosts, h.Name) {
			template = g.Template
			n := g.Slots
			if n == 0 {
				n = h.Slots
			}
			for slot := range n {
				slots = append(slots, settings.NodeName(h.Name, slot+1))
			}
		}
	}
	if slots == nil {
		return nil
	}
	there, err := h.there(slots, template) // before Slurm is asked: it knows of each that it wants
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	slurm := control.Open()
	known, err := slurm.Nodes(ctx, slots)
	if err != nil {
		return err
	}
	unwanted, missing := map[string]time.Time{}, map[string]bool{}
	if h.failures == nil {
		h.failures = map[string]int{}
	}
	var errs []error
	resting, rested := map[string]int{}, []string(nil)
	for _, n := range known {
		if rests(n) {
			if resting[n.Name] = h.resting[n.Name] + 1; resting[n.Name] == restLooks {
				rested = append(rested, n.Name)
			}
		}
		made, isThere := there[n.Name]
		switch {
		case n.Failed(reasons()...), n.Is("DRAIN") && drained.MatchString(n.Reason):
			// A host on which all fails must not get each job that is queued again: it waits longer from time to time.
			if time.Since(n.Since) > min(time.Duration(s.Power.SuspendTimeout)<<min(h.failures[n.Name], 10), mostWait) {
				if n.Is("POWERED_DOWN") {
					h.failures[n.Name]++
				}
				errs = append(errs, h.back(ctx, slurm, n))
			}
		case deaf(n): // it would stay so, and once slurmctld was started again it would get no job any more
			h.Log.Info("have Slurm power a node down again that it would wait for", "node", n.Name, "state", strings.Join(n.State, "+"))
			errs = append(errs, slurm.PowerDownIdle(ctx, []string{n.Name}))
		case (n.Is("ALLOCATED") || n.Is("IDLE") && !n.Is("POWER_DOWN")) && !n.Is("POWERED_DOWN") && !n.Is("POWERING_UP") && !n.Is("POWERING_DOWN"):
			delete(h.failures, n.Name)
			// Slurm itself would see that its slurmd is gone after SlurmdTimeout, which is minutes.
			switch how := h.ended(ctx, n.Name, isThere); {
			case how == "", n.Is("DRAIN") && n.Reason != forOne: // an admin's reason must not be replaced
			case isThere || h.missing[n.Name]: // one that is missing for the second time: it may just have been made
				errs = append(errs, slurm.Down(ctx, []string{n.Name}, ours+how))
			default:
				missing[n.Name] = true
			}
		case !isThere:
		case n.Is("POWERING_UP"): // its slurmd will not answer any more if its command has ended
			if how := h.Nodes.Ended(ctx, n.Name); how != "" {
				errs = append(errs, slurm.Down(ctx, []string{n.Name}, ours+how))
			}
		case n.Is("POWERED_DOWN"):
			before, again := h.unwanted[n.Name]
			unwanted[n.Name] = made
			if again && before.Equal(made) { // the same one for the second time: it is not just about to be wanted
				h.Log.Info("end a node that Slurm does not know as up", "node", n.Name)
				if err := h.Nodes.RemoveMade(ctx, n.Name, made); refuse.KindOf(err) != refuse.NotFound { // else Slurm had it made anew meanwhile
					errs = append(errs, err)
				}
			}
		}
	}
	h.unwanted, h.missing = unwanted, missing
	if len(rested) > 0 {
		if err := slurm.Idle(ctx, rested); err != nil { // one of them may just have got a job
			errs = append(errs, err)
			for _, name := range rested {
				resting[name]--
			}
		}
	}
	h.resting = resting
	if cold := coldest(known, s.Warm); len(cold) > 0 {
		h.Log.Info("ask Slurm for nodes that stay when nothing runs on them", "nodes", strings.Join(cold, " "))
		errs = append(errs, slurm.PowerUp(ctx, cold))
	}
	return refuse.Join(errs)
}

// ended says why a node that Slurm knows as up does not run; "" if it runs.
func (h *Host) ended(ctx context.Context, name string, isThere bool) string {
	if !isThere {
		return "it is gone"
	}
	return h.Nodes.Ended(ctx, name)
}

// coldest returns the nodes that must be made so that as many as are wanted wait for a job: SuspendExcNodes keeps those that are there, and no more.
func coldest(known []control.Node, warm int) (cold []string) {
	for _, n := range known {
		switch {
		case !n.Is("IDLE") || n.Is("DRAIN") || n.Is("FAIL") || n.Is("MAINT") || n.Is("POWERING_DOWN") || n.Is("POWER_DOWN"):
		case n.Is("POWERED_DOWN") && !n.Is("POWER_UP"):
			cold = append(cold, n.Name)
		default: // it waits for a job, or will soon
			warm--
		}
	}
	return cold[:max(0, min(warm, len(cold)))]
}

// ours begins the reasons that Berth gives.
const ours = "berth: "

// forOne is the reason that slurmctld gives for the drain of a node that is powered down after its job.
const forOne = "POWER_DOWN_ASAP"

// reasons begin those for which a node is given back. Other reasons are people's, and theirs to end.
func reasons() []string {
	return []string{ours, "ResumeTimeout reached", "Not responding", "Node unexpectedly rebooted"}
}

// drained finds the reasons for which slurmctld itself drains a node: it registers with less than slurm.conf says, and is INVALID_REG until
// it is removed; or its slurmd knows of a job that a slurmctld that was killed has forgotten, or fails otherwise. The fault ends with the
// node; the reason stays.
var drained = regexp.MustCompile(`^(Low socket\*core\*thread count|Low CPUs|Low RealMemory \(|Low TmpDisk|gres/\S+ count reported lower|` +
	`(Duplicate jobid|Kill task failed|batch job complete failure|Job env setup error|Prolog error|Epilog error)$)`)

// deaf reports whether Slurm waits for an answer of a node that is powered down. slurmctld 22.05 does after State=RESUME, by whomever
// (_require_node_reg), never asks a node that is powered down, and gives one for which it waits no job once it has read its state anew (_build_bitmaps).
// It waits no more when the node is powered down again.
func deaf(n control.Node) bool {
	return n.Is("IDLE") && n.Is("POWERED_DOWN") && n.Is("NOT_RESPONDING") && !n.Is("POWER_UP") && !n.Is("DRAIN") && !n.Is("FAIL") && !n.Is("MAINT")
}

// restLooks is for how many looks a node rests until Slurm is told that it is idle: one that gets a job soon needs it not.
const restLooks = 2

// rests reports whether a node is powered down and waits for a job. slurmctld 22.05 does not always know that: it leaves out of the idle ones a node
// that did not respond when its last job had completed (make_node_idle), forgets when it powers the node down that it did not respond (_do_power_work),
// and then gives it no job until slurmctld is started again, though it shows it as idle. Told State=IDLE, it counts it again.
func rests(n control.Node) bool {
	return n.Is("IDLE") && n.Is("POWERED_DOWN") && !slices.ContainsFunc(n.State, func(s string) bool {
		return slices.Contains([]string{"NOT_RESPONDING", "COMPLETING", "POWER_UP", "POWER_DOWN", "POWERING_UP", "POWERING_DOWN", "DRAIN", "FAIL", "MAINT", "INVALID_REG"}, s)
	})
}

// back gives a node back to Slurm that is down. One that may be there is removed first, by SuspendProgram; the next look finds it powered down.
func (h *Host) back(ctx context.Context, slurm control.Slurm, n control.Node) error {
	h.Log.Info("give a node back to Slurm", "node", n.Name, "state", strings.Join(n.State, "+"), "reason", n.Reason)
	switch {
	case n.Is("POWERING_DOWN"), n.Is("POWER_DOWN"):
		return nil // that is under way
	case n.Is("POWERED_DOWN"):
		if err := slurm.Resume(ctx, []string{n.Name}); err != nil {
			return err
		}
		return slurm.PowerDownIdle(ctx, []string{n.Name}) // see deaf
	}
	return slurm.PowerDown(ctx, []string{n.Name})
}

// there returns the nodes in the slots that were made of Slurm's template, and when.
func (h *Host) there(slots []string, template string) (map[string]time.Time, error) {
	names, err := h.Nodes.Names()
	if err != nil {
		return nil, err
	}
	all := map[string]time.Time{}
	for _, name := range names {
		if !slices.Contains(slots, name) {
			continue
		}
		made, err := h.Nodes.Made(name) // before its labels: they may be those of the next one, which is not ended then
		if err != nil {
			continue // it went meanwhile
		}
		if n, err := h.Nodes.Spec(name); err == nil && roles.OwnerOf(n.Labels) != "" && n.Labels[roles.TemplateLabel] == template {
			all[name] = made
		}
	}
	return all, nil
}
