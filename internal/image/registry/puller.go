package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sync/errgroup"

	"berth/internal/image/pull"
	"berth/internal/sys/refuse"
	"berth/internal/sys/space"
)

// puller is one pull.
type puller struct {
	Host
	pull.Request
	tell *teller

	ref   name.Reference
	http  *transport.Wrapper // signed in
	blobs []*blob            // all of the image that are not in the store, locked

	done, total, fetched atomic.Int64
}

// atOnce is how many blobs are fetched side by side, as many as Docker does.
const atOnce = 3

// pull fetches what the store lacks of the image.
func (p *puller) pull(ctx context.Context) (pull.Got, error) {
	if err := os.MkdirAll(pull.Blobs(p.Folder), 0o700); err != nil {
		return pull.Got{}, fmt.Errorf("make the folder for blobs: %w", err)
	}
	want, err := platformOf(p.Platform)
	if err != nil {
		return pull.Got{}, err
	}
	if err := p.parse(); err != nil {
		return pull.Got{}, err
	}
	got, err := p.fetch(ctx, want)
	if err != nil {
		return pull.Got{}, p.failure(space.Full(p.Folder, err))
	}
	return got, nil
}

// parse reads the reference.
func (p *puller) parse() (err error) {
	full, err := pull.Name(p.Ref)
	if err != nil {
		return err
	}
	var options []name.Option
	if p.Insecure {
		options = append(options, name.Insecure)
	}
	if p.ref, err = name.ParseReference(full, options...); err != nil {
		return &refuse.Error{
			Kind: refuse.Invalid, What: clean(full) + " is not the name of an image in a registry",
			Remedy: "names are REGISTRY/REPOSITORY:TAG or REGISTRY/REPOSITORY@sha256:…, in small letters", Err: err,
		}
	}
	return nil
}

func (p *puller) fetch(ctx context.Context, want v1.Platform) (pull.Got, error) {
	if err := p.signIn(ctx); err != nil {
		return pull.Got{}, err
	}
	img, err := p.resolve(ctx, want)
	if err != nil {
		return pull.Got{}, err
	}
	if err := p.hold(ctx, img); err != nil {
		return pull.Got{}, err
	}
	if err := p.enough(); err != nil {
		return pull.Got{}, err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, b := range p.blobs {
		group.Go(func() error { return p.complete(ctx, b) })
	}
	if err := group.Wait(); err != nil {
		return pull.Got{}, err
	}
	from := p.ref.Context().Name() + "@" + img.top.String()
	if hub, ok := strings.CutPrefix(from, name.DefaultRegistry+"/"); ok {
		from = "docker.io/" + hub // as users write it
	}
	return pull.Got{Manifest: img.manifest.digest().String(), From: from, Fetched: p.fetched.Load()}, nil
}

// hold takes the locks of the image's blobs that the store lacks, and writes those that are known. All pulls take locks
// in the order of the digests, so none waits for ever.
func (p *puller) hold(ctx context.Context, img *found) error {
	blobs := []*blob{{digest: img.manifest.digest(), content: img.manifest.text}, {digest: img.manifest.Config.Digest, content: img.config}}
	for i, l := range img.manifest.Layers {
		if !slices.ContainsFunc(blobs, func(b *blob) bool { return b.digest == l.Digest }) {
			blobs = append(blobs, &blob{digest: l.Digest, size: l.Size, unpacked: filepath.Join(p.Layers, img.diffIDs[i].Hex)})
		}
	}
	slices.SortFunc(blobs, func(a, b *blob) int { return strings.Compare(a.digest.Hex, b.digest.Hex) })
	for _, b := range blobs {
		if b.there() {
			continue
		}
		err := b.lock(ctx, pull.Blobs(p.Folder), func() {
			_ = p.tell.say(pull.Answer{Say: "another pull fetches " + b.digest.Hex[:12] + "; waiting for it"})
		})
		if err != nil {
			return err
		}
		p.blobs = append(p.blobs, b)
		if err := b.begin(); err != nil {
			return err
		}
	}
	return nil
}

// enough refuses a pull for which the file system has no room, and tells the first progress.
func (p *puller) enough() error {
	need := int64(0)
	for _, b := range p.blobs {
		p.done.Add(b.have)
		p.total.Add(b.size)
		need += b.size - b.have
	}
	p.tell.progress(p.done.Load(), p.total.Load())
	return space.Need(p.Folder, need)
}

func (p *puller) client() *http.Client { return &http.Client{Transport: p.http} }

// release gives the locks of all blobs up.
func (p *puller) release() {
	for _, b := range p.blobs {
		b.file.Close()
	}
	p.blobs = nil
}

// remove removes the blobs of the image, which the asker has unpacked.
func (p *puller) remove() error {
	for _, b := range p.blobs {
		if err := os.Remove(b.file.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) { // begin removes those of unpacked layers
			return err
		}
	}
	return nil
}
