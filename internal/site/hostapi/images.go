package hostapi

import (
	"cmp"
	"context"
	"errors"
	"io"

	"berth/internal/image"
	"berth/internal/image/pull"
	"berth/internal/node/nodelog"
	"berth/internal/site/api"
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

// Logs writes the output of a node's command.
func (h *Host) Logs(ctx context.Context, name string, wish api.Logs, to io.Writer) error {
	v, err := h.OpenLog(ctx, name)
	if err != nil || v == nil {
		return err
	}
	defer v.Close()
	out := nodelog.Bytes(to)
	if err := v.Last(out, wish.Lines); err != nil || !wish.Follow {
		return err
	}
	while, cancel := h.WhileWriting(ctx, name)
	defer cancel()
	return v.Follow(while, out)
}
