// Package power makes and removes the nodes that Slurm asks for, through the agents of their hosts, and reports the outcome to
// Slurm.
package power

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"berth/internal/site/slurm/control"
	"berth/internal/site/slurm/hostlist"
	"berth/internal/site/slurm/settings"
	"berth/internal/sys/refuse"
)

// Power implements Slurm's programs for power saving, and those before and after a job.
type Power struct {
	Settings *settings.Settings
	Log      *slog.Logger

	site  *site
	slurm control.Slurm
	began time.Time
}

// Open returns the Power of a site.
func Open(s *settings.Settings, log *slog.Logger) *Power {
	return &Power{Settings: s, Log: log, site: openSite(s), slurm: control.Open(), began: time.Now()}
}

// reasons begins the reasons that Berth gives for nodes that are down.
const reasons = "berth: "

// room is the most nodes of a host that are worked on at the same time: a start is the work of many steps.
const room = 8

// place is a node and where it belongs.
type place struct {
	node, host string
	group      *settings.Group
}

// places returns where the nodes of a list belong. Those that are nowhere are told, and make the error.
func (p *Power) places(list string) (all []place, lost []string, err error) {
	names, err := hostlist.Expand(list)
	if err != nil {
		return nil, nil, err
	}
	var errs []error
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		host, group, err := p.Settings.Find(name)
		if err != nil {
			lost, errs = append(lost, name), append(errs, err)
			continue
		}
		all = append(all, place{name, host, group})
	}
	return all, lost, refuse.Join(errs)
}

// each does something for all places: hosts side by side, and several nodes of each. It returns the errors by node.
func each(all []place, do func(place) error) map[string]error {
	var mu sync.Mutex
	var work sync.WaitGroup
	failed := map[string]error{}
	slots := map[string]chan struct{}{}
	for _, at := range all {
		if slots[at.host] == nil {
			slots[at.host] = make(chan struct{}, room)
		}
		free := slots[at.host]
		work.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			if err := do(at); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed[at.node] = err
			}
		})
	}
	work.Wait()
	return failed
}

// Resume makes nodes, and tells Slurm where they are. It returns when each runs, or is undone and told as down with the reason.
func (p *Power) Resume(ctx context.Context, list string) error {
	all, lost, err := p.places(list)
	if all == nil && lost == nil {
		return err
	}
	errs := []error{err}
	within, cancel := context.WithTimeout(ctx, time.Duration(p.Settings.Power.ResumeTimeout)*3/4) // Slurm gives up after the whole
	defer cancel()
	if lost != nil {
		errs = append(errs, p.slurm.Down(within, lost, reasons+err.Error()))
	}
	p.site.find(within)
	failed := each(all, func(at place) error {
		began := time.Now()
		held, err := p.begin(within, at)
		p.Log.Info("resume", "node", at.node, "host", at.host, "took", (time.Since(began) - held).Round(time.Millisecond), "held", held, "error", text(err))
		return err
	})
	return refuse.Join(append(errs, p.undo(ctx, all, failed)...))
}

// early returns how long it is until a slurmd of Slurm 22.05 may begin: in the second after the one in which this program was started, or later.
//
// slurmctld notes the second in which it asks for a node (boot_req_time), and takes a slurmd that registers for one of before if its boot lies in an
// earlier second (waiting_for_node_boot in node_mgr.c). It answers as if all were well; so slurmd does not register again, and slurmctld does not ask it
// to (ping_nodes.c), until ResumeTimeout. The boot is the second of the registration, less the seconds that slurmd -b counts since its start
// (validate_jobs_on_node in job_mgr.c). Of these one has gone by as soon as the second of the uptime changes (get_up_time in get_mach_stat.c), which it
// does at another moment than that of the clock. So a slurmd that begins in the same second may seem a second too old, and a later one never does.
// Seen with 22.05.8: "Still waiting for boot of node", then "ResumeTimeout reached".
func (p *Power) early() time.Duration {
	const coarse = 10 * time.Millisecond // by which time(2) may be late
	return max(0, time.Until(p.began.Truncate(time.Second).Add(time.Second+coarse)))
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// begin makes a node, and returns how long its command was held. An earlier node of this name is removed first: Slurm knows of nothing that
// runs there.
func (p *Power) begin(ctx context.Context, at place) (held time.Duration, err error) {
	made, err := p.site.apply(ctx, at.host, at.group.Template, at.node, nil, p.early())
	if err == nil && made.Did != "created" {
		if err = p.site.remove(ctx, at.host, at.node); err == nil {
			made, err = p.site.apply(ctx, at.host, at.group.Template, at.node, nil, p.early())
		}
	}
	held = time.Duration(made.Held) * time.Millisecond
	if err != nil || p.Settings.Addresses == settings.DNS {
		return held, err
	}
	address, err := addressOf(made)
	if err != nil {
		return held, err
	}
	return held, p.slurm.Address(ctx, at.node, address)
}

// cleanup is how long the undo of failed nodes may take. Slurm ends its programs after the longer of its timeouts.
func (p *Power) cleanup() time.Duration {
	return min(30*time.Second, max(5*time.Second, time.Duration(p.Settings.Power.ResumeTimeout)/5))
}

// undo removes nodes that failed, as far as they exist, and has Slurm take them out of service. The agent of the host gives the
// node back after a while.
func (p *Power) undo(ctx context.Context, all []place, failed map[string]error) (errs []error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cleanup())
	defer cancel()
	for _, at := range all {
		if err := failed[at.node]; err != nil { // before all is removed: jobs need not wait for that
			errs = append(errs, fmt.Errorf("node %s: %w", at.node, err), p.slurm.Down(ctx, []string{at.node}, reasons+err.Error()))
		}
	}
	each(slices.DeleteFunc(slices.Clone(all), func(at place) bool { return failed[at.node] == nil }), func(at place) error {
		err := p.site.remove(ctx, at.host, at.node)
		p.Log.Info("undo", "node", at.node, "host", at.host, "error", text(err))
		return err
	})
	return errs
}

// Suspend removes nodes. It returns when nothing of them is left: Slurm may want the next one of the same name at once.
func (p *Power) Suspend(ctx context.Context, list string) error {
	all, _, err := p.places(list) // of a node that is not Berth's nothing is there
	if all == nil {
		return err
	}
	// After the whole time the names are given to jobs again: later acts would hit new nodes.
	within, cancel := context.WithTimeout(ctx, time.Duration(p.Settings.Power.SuspendTimeout)*3/4)
	defer cancel()
	failed := each(all, func(at place) error {
		began := time.Now()
		err := p.site.remove(within, at.host, at.node)
		p.Log.Info("suspend", "node", at.node, "host", at.host, "took", time.Since(began).Round(time.Millisecond), "error", text(err))
		return err
	})
	errs := []error{err}
	late, stop := context.WithTimeout(context.WithoutCancel(ctx), p.cleanup())
	defer stop()
	for _, at := range all {
		if err := failed[at.node]; err != nil { // no job may get it; the agent of the host has it removed later
			errs = append(errs, fmt.Errorf("node %s: %w", at.node, err),
				p.slurm.Down(late, []string{at.node}, reasons+"it could not be removed: "+err.Error()))
		}
	}
	return refuse.Join(errs)
}

// Fail removes nodes that did not answer in time, which Slurm has taken out of service. Their hosts' agents give them back.
func (p *Power) Fail(ctx context.Context, list string) error {
	all, _, err := p.places(list)
	within, cancel := context.WithTimeout(ctx, p.cleanup())
	defer cancel()
	errs := []error{err}
	for name, err := range each(all, func(at place) error { return p.site.remove(within, at.host, at.node) }) {
		errs = append(errs, fmt.Errorf("node %s: %w", name, err))
	}
	return refuse.Join(errs)
}
