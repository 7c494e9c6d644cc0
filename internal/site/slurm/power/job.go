package power

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"berth/internal/site/slurm/hostlist"
	"berth/internal/site/slurm/settings"
	"berth/internal/site/slurm/wish"
	"berth/internal/sys/refuse"
)

// Job is a job as slurmctld tells of it to the programs before and after it.
type Job struct {
	ID      string // a number, or ARRAY_TASK: to Slurm, the number of an array is that of all its tasks
	Nodes   string // as a list
	Comment string
}

// Slurm is asked whether nodes answer, ever less often: each question has it tell of all its nodes, and very many jobs may wait.
const (
	soonest = 200 * time.Millisecond
	latest  = 3 * time.Second
)

// Prolog readies the nodes of a job: it waits until they answer, and gives them the limits that the job wants and no others, also if the
// job before it wanted others. Where a node is for one job, no other gets it from then on, and it is removed after the job. It holds a job
// whose comment is wrong.
//
// That it waits also starts the job sooner. slurmctld looks only each 30 s whether the nodes of a job are up, and besides when this program ends.
func (p *Power) Prolog(ctx context.Context, job Job) error {
	all, _, _ := p.places(job.Nodes) // others are the site's own
	if all == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(p.Settings.Power.ResumeTimeout)+p.cleanup())
	defer cancel()
	wishes, err := wish.Parse(job.Comment)
	if err != nil {
		return p.hold(ctx, job, err)
	}
	fresh, err := p.ready(ctx, all)
	if err != nil {
		return err
	}
	began := time.Now()
	for _, failed := range each(all, func(at place) error {
		if wishes == nil && fresh[at.node] {
			return nil
		}
		want, err := p.want(ctx, at, wishes)
		if err != nil {
			return err
		}
		did, err := p.site.make(ctx, at.host, at.group.Template, at.node, want)
		if err == nil && did != "changed" && did != "unchanged" { // its slurmd is not the one that Slurm knows
			err = fmt.Errorf("node %s was %s just now, and not there before", at.node, did)
		}
		return err
	}) {
		err = failed
	}
	p.Log.Info("prolog", "job", job.ID, "nodes", job.Nodes, "took", time.Since(began).Round(time.Millisecond), "error", text(err))
	switch {
	case wishes != nil && refuse.KindOf(err) == refuse.Invalid: // the job's fault; without wishes it is the template's
		return p.hold(ctx, job, err)
	case err != nil:
		return err
	}
	if p.Settings.Once { // not in the epilog: slurmctld gives a node to the next job while that runs
		names := make([]string, 0, len(all))
		for _, at := range all {
			names = append(names, at.node)
		}
		if err := p.slurm.PowerDownNext(ctx, names); err != nil {
			return err
		}
	}
	// The resource use of earlier jobs on these nodes, and the limits of this one. It replaces the note from before the job was queued
	// again. slurmctld sends it to the accounts at the job's end.
	before := p.look(ctx, all, fresh)
	return p.slurm.Note(ctx, job.ID, before.note().String())
}

// want returns the values of parameters by which a node fulfils wishes.
func (p *Power) want(ctx context.Context, at place, wishes wish.Wishes) (map[string]any, error) {
	if wishes == nil {
		return nil, nil
	}
	of, err := p.site.parameters(ctx, at.host, at.group.Template)
	if err != nil {
		return nil, err
	}
	return wishes.Parameters(of)
}

// ready waits until nodes answer. fresh are those that were made for this job.
func (p *Power) ready(ctx context.Context, all []place) (fresh map[string]bool, err error) {
	fresh = map[string]bool{}
	names := make([]string, 0, len(all))
	for _, at := range all {
		names = append(names, at.node)
	}
	for pause := soonest; ; pause = min(pause*5/4, latest) {
		nodes, err := p.slurm.Nodes(ctx, names)
		if err != nil {
			return nil, err
		}
		waits := false
		for _, n := range nodes {
			switch {
			case n.Is("DOWN"):
				return nil, fmt.Errorf("node %s is down: %s", n.Name, n.Reason)
			case n.Is("POWERING_UP"), n.Is("POWERED_DOWN"), n.Is("POWERING_DOWN"):
				waits, fresh[n.Name] = true, true
			case p.Settings.Addresses != settings.DNS && n.Address == n.Name: // where it is, slurm-resume has not told yet
				waits = true
			}
		}
		if !waits {
			return fresh, nil
		}
		select {
		case <-time.After(pause + rand.N(pause/4)): // not all at the same time
		case <-ctx.Done():
			return nil, fmt.Errorf("not all nodes of the job (%s) answered in time: %w", hostlist.Compress(names), context.Cause(ctx))
		}
	}
}

// hold queues a job again and holds it, with the reason where its user sees it. Jobs that cannot be queued again, those at a terminal, Slurm ends
// when the prolog fails.
func (p *Power) hold(ctx context.Context, job Job, why error) error {
	noted := p.slurm.Note(ctx, job.ID, reasons+why.Error())
	if p.slurm.Hold(ctx, job.ID) == nil {
		p.Log.Info("held", "job", job.ID, "error", why.Error())
		return noted
	}
	return why
}

// Epilog writes the resource use of a job's nodes while it ran into the accounts.
func (p *Power) Epilog(ctx context.Context, job Job) error {
	all, _, _ := p.places(job.Nodes) // others are the site's own
	if all == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.cleanup())
	defer cancel()
	submitted, text, err := p.slurm.Noted(ctx, job.ID)
	if err != nil || strings.HasPrefix(text, reasons) { // a job that was held has used nothing
		return err
	}
	after := p.look(ctx, all, nil)
	used := after.since(noteOf(text))
	p.Log.Info("epilog", "job", job.ID, "nodes", job.Nodes, "used", used)
	late, stop := context.WithTimeout(context.WithoutCancel(ctx), hears) // an agent that is away may have taken all the time
	defer stop()
	return p.account(late, run{job.ID, submitted}, used)
}
