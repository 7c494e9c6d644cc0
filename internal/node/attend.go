package node

import (
	"context"
	"fmt"
	"os"
	"time"

	"berth/internal/runner"
)

// attendWait is how long a command that only reads waits until events from the time without a keeper are noted.
const attendWait = 5 * time.Second

// Attend starts the keeper if nodes run or wait for a restart and no keeper runs, and waits until it has noted the ends
// of nodes that no process saw, so that what is read afterwards is up to date. It returns a sentence for the user, "" if
// there is nothing to say.
func (b *Berth) Attend(ctx context.Context) string {
	if b.keeper().Runs() {
		return ""
	}
	left, ended := b.unattended()
	if len(left) == 0 {
		return ""
	}
	gone := fmt.Sprintf("no keeper was there for %d of the nodes: it was killed", len(left))
	if os.Geteuid() != 0 {
		return gone + "; any berth command that root runs starts it again"
	}
	ctx, cancel := context.WithTimeout(ctx, attendWait)
	defer cancel()
	for _, name := range left { // the first of them starts it, and then it knows them all; but one may end meanwhile
		if err := b.keeper().Watch(ctx, name); err != nil && b.wantsKeeper(name) {
			return fmt.Sprintf("%s, and cannot be started again: %v", gone, err)
		}
	}
	for _, name := range ended {
		if err := b.settled(ctx, name); err != nil {
			return fmt.Sprintf("%s; it is started again, and node %s, which had ended, is not cleaned up yet: %v", gone, name, err)
		}
	}
	if len(ended) > 0 {
		return fmt.Sprintf("%s; it is started again; ended meanwhile: %d", gone, len(ended))
	}
	return gone + "; it is started again"
}

// unattended lists the nodes that a keeper would look after, and those of them whose init has ended.
func (b *Berth) unattended() (all, ended []string) {
	names, err := b.Names()
	if err != nil {
		return nil, nil
	}
	for _, name := range names {
		var init runner.Holder
		if init, err = b.CreatedInit(name); err == nil && !init.First().Alive() {
			ended = append(ended, name)
		}
		if err == nil || b.restartIn(name, nil) > 0 {
			all = append(all, name)
		}
	}
	return all, ended
}

// endWait is how long a list waits for the ends of nodes to be noted that the kernel reports already.
const endWait = time.Second

// List returns the status of every node, in the order of their names, as the kernel has it now. Of a node whose process 1 has
// just ended it says how, as soon as that is noted.
func (b *Berth) List(ctx context.Context) ([]Status, error) {
	all, err := b.Nodes.List(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, endWait)
	defer cancel()
	for i := range all {
		b.awaitEnd(ctx, &all[i])
	}
	return all, nil
}

// awaitEnd completes the status of a node whose process 1 has just ended: the next holder of its lock, the keeper or this process,
// notes how it ended. A node that belongs to a berth run is left to that.
func (b *Berth) awaitEnd(ctx context.Context, s *Status) {
	if !s.Ending || os.Geteuid() != 0 || s.Foreground != nil && s.Foreground.Alive() {
		return
	}
	_ = b.settled(ctx, s.Name) // else the state is told without the exit code
	if now := b.Status(s.Name, s.Boot); now.Name != "" {
		*s = now
	}
}
