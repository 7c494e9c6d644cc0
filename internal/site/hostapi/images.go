package hostapi

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"

	"berth/internal/image"
	"berth/internal/image/pull"
	"berth/internal/node/nodelog"
	"berth/internal/site/api"
	"berth/internal/spec/roles"
)

// Images lists the images of the store, also those that are one file.
func (h *Host) Images(context.Context) ([]image.Record, error) {
	store := image.Open(h.Layout)
	all, err := store.List()
	if err != nil {
		return nil, err
	}
	files, err := store.ListPacked()
	return append(all, files...), err
}

// PullImage fetches an image from a registry.
func (h *Host) PullImage(ctx context.Context, ref, name string) (image.Record, error) {
	full, err := pull.Name(ref)
	if err != nil {
		return image.Record{}, err
	}
	store, l := image.Open(h.Layout), h.Layout
	if err := store.Make(); err != nil {
		return image.Record{}, err
	}
	if _, err := pull.Sweep(l.Pulls(), pull.Stale); err != nil {
		return image.Record{}, err
	}
	p, err := pull.Start(ctx, pull.Request{Ref: full, Folder: l.Pulls(), Layers: l.Layers()}, pull.See{
		Progress: func(int64, int64) {}, Say: func(string) {},
	})
	if err != nil {
		return image.Record{}, err
	}
	as := image.As{Name: cmp.Or(name, full), Manifest: p.Manifest, From: p.From}
	rec, err := store.Import(ctx, l.Pulls(), as, func(int64, int64) {})
	return rec, errors.Join(err, p.End(err == nil))
}

// RemoveImage removes an image that no node uses.
func (h *Host) RemoveImage(ctx context.Context, name string) error {
	return image.Open(h.Layout).Remove(ctx, name, h.ImageUsers)
}

// Logs writes the output of a node's command; for an owner, there are no nodes but its own.
func (h *Host) Logs(ctx context.Context, name string, owner roles.Owner, wish api.Logs, to io.Writer) error {
	v, err := h.OpenLog(ctx, name)
	if err != nil {
		return err
	}
	if v == nil {
		return h.still(name, owner)
	}
	defer v.Close()
	write, known := nodelog.Bytes(to), map[*os.File]bool{}
	out := func(part *os.File) error {
		if !known[part] { // it is open: if the node is the owner's now, it is of the owner's node, also when that is removed
			if err := h.still(name, owner); err != nil {
				return err
			}
			known[part] = true
		}
		return write(part)
	}
	if err := v.Last(out, wish.Lines); err != nil || !wish.Follow {
		return err
	}
	while, cancel := h.WhileWriting(ctx, name)
	defer cancel()
	return v.Follow(while, out)
}
