package node

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"berth/internal/ids"
	"berth/internal/link"
)

// claimIndexes are the folders in which claims of all nodes lie by what is claimed, under NODE/IFNAME.
func (b *Berth) claimIndexes() []string { return []string{b.Layout.MACs(), b.Layout.Addresses()} }

// release gives back what a node without a journal has claimed in the folders that all nodes share: a power cut may have
// spared the claim and lost the journal. The caller holds the node's lock.
func (b *Berth) release(ctx context.Context, name string) error {
	err := (&ids.Claim{Dir: b.Layout.IDs(), Node: name}).Undo(ctx)
	for _, index := range b.claimIndexes() {
		err = errors.Join(err, link.Release(index, name))
	}
	return err
}

// sweepClaims gives back what nodes that do not exist have claimed.
func (b *Berth) sweepClaims(ctx context.Context) error {
	owners, err := ids.Nodes(b.Layout.IDs())
	for _, index := range b.claimIndexes() {
		more, listErr := link.Claimants(index)
		owners, err = append(owners, more...), errors.Join(err, listErr)
	}
	slices.Sort(owners)
	for _, name := range slices.Compact(owners) {
		if b.exists(name) {
			continue
		}
		l, lockErr := b.lock(ctx, name)
		if lockErr != nil {
			return errors.Join(err, lockErr)
		}
		if b.exists(name) {
			l.release()
			continue
		}
		err = errors.Join(err, b.release(ctx, name))
		l.remove()
	}
	return err
}

// exists reports whether there is anything of the node in its own folders.
func (b *Berth) exists(name string) bool {
	dirs := b.Layout.Node(name)
	return slices.ContainsFunc([]string{dirs.Lib, dirs.Run}, func(dir string) bool {
		_, err := os.Lstat(dir)
		return !errors.Is(err, fs.ErrNotExist)
	})
}

// sweepLocks removes the locks of nodes that do not exist.
func (b *Berth) sweepLocks(ctx context.Context) {
	paths, _ := filepath.Glob(b.Layout.Lock("*"))
	for _, p := range paths {
		name := filepath.Base(p)
		if b.exists(name) {
			continue
		}
		l, err := b.lock(ctx, name)
		if err != nil {
			continue
		}
		if b.exists(name) {
			l.release()
		} else {
			l.remove()
		}
	}
}
