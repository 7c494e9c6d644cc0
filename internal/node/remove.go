package node

import (
	"context"
	"errors"
	"io/fs"

	"berth/internal/node/records"
	"berth/internal/sys/refuse"
)

// Remove removes a node and everything it wrote. A running one needs force.
func (b *Berth) Remove(ctx context.Context, name string, force bool) error {
	l, _, err := b.lockKilling(ctx, name, force)
	lost := errors.Is(err, records.ErrLost)
	if force && b.guard == nil && lost {
		l, err = b.lock(ctx, name)
	}
	if err != nil {
		return err
	}
	defer l.release()
	if init, err := b.CreatedInit(name); !force && !errors.Is(err, fs.ErrNotExist) {
		if err != nil {
			return err // it may be running
		}
		if init.First().Alive() {
			return refuse.Busyf("node %s is running; stop it, or remove it with --force", name)
		}
	}
	err = b.remove(ctx, name, journals{})
	if lost && err == nil {
		err = b.release(ctx, name)
	}
	return err
}
