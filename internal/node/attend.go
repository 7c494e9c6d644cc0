package node

import (
	"context"
	"fmt"
	"os"
	"time"

	"berth/internal/oci"
)

// attendWait is how long a command that only reads waits for what happened while no keeper was there to be noted.
const attendWait = 5 * time.Second

// Attend starts the keeper where nodes run, or wait for a restart, and none does, and waits until the ends that nobody
// saw are noted: what is read afterwards is the truth. It returns a sentence for the user, "" if there is nothing to say.
func (b *Berth) Attend(ctx context.Context) string {
	if b.keeperRuns() {
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
		if err := b.watch(ctx, name); err != nil && b.wantsKeeper(name) {
			return fmt.Sprintf("%s, and cannot be started again: %v", gone, err)
		}
	}
	for _, name := range ended {
		if err := b.noted(ctx, name); err != nil {
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
		var init *oci.Create
		if init, err = b.createdInit(name); err == nil && !alive(init.PID, init.StartTime) {
			ended = append(ended, name)
		}
		if err == nil || b.restartIn(name, false) > 0 {
			all = append(all, name)
		}
	}
	return all, ended
}

// noted returns when the end of a node's init is noted, by the keeper or by this process.
func (b *Berth) noted(ctx context.Context, name string) error {
	l, err := b.lockThere(ctx, name)
	if l == nil {
		return err
	}
	defer l.release()
	err = b.settle(ctx, name)
	b.unlockGone(name, l)
	return err
}
