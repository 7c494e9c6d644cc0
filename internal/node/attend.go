package node

import (
	"context"
	"fmt"
	"os"
	"time"

	"berth/internal/runner"
)

// attendWait is how long a command that only reads waits for what happened while no keeper was there to be noted.
const attendWait = 5 * time.Second

// Attend starts the keeper where nodes run, or wait for a restart, and none does, and waits until the ends that nobody
// saw are noted: what is read afterwards is the truth. It returns a sentence for the user, "" if there is nothing to say.
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
	names, err := b.names()
	if err != nil {
		return nil, nil
	}
	for _, name := range names {
		var init runner.Holder
		if init, err = b.createdInit(name); err == nil && !init.First().Alive() {
			ended = append(ended, name)
		}
		if err == nil || b.restartIn(name, false) > 0 {
			all = append(all, name)
		}
	}
	return all, ended
}
