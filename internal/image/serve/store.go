package serve

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"berth/internal/image"
	"berth/internal/sys/layout"
)

// library knows the images of a store, and has their manifests made once.
type library struct {
	ctx    context.Context // ends with the server
	store  image.Store
	dirs   layout.Layout
	failed func(name string, err error)

	mu     sync.Mutex
	listed time.Time
	shelf  shelf
	made   map[string]*making // by record
	layers map[string]*layer  // by the digest that the store has
	turn   chan struct{}      // layers are read one at a time: the host has other work
}

// making is the manifest of an image, once done is closed.
type making struct {
	done chan struct{}
	picture
	err   error
	ended time.Time
}

// again is how long an image that cannot be read is left alone: reading its layers costs as much each time.
const again = time.Minute

// picture is an image as it is served.
type picture struct {
	digest   string // of the manifest
	manifest []byte
	config   []byte
	blobs    map[string]*layer // by digest; nil: the configuration
}

func newLibrary(ctx context.Context, dirs layout.Layout, failed func(string, error)) *library {
	return &library{
		ctx: ctx, store: image.Open(dirs), dirs: dirs, failed: failed,
		made: map[string]*making{}, layers: map[string]*layer{}, turn: make(chan struct{}, 1),
	}
}

// fresh is how old the list of images may be.
const fresh = time.Second

// images returns what the store holds, and begins to make the manifests of images that are new.
func (l *library) images() (shelf, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.listed) < fresh {
		return l.shelf, nil
	}
	records, err := l.store.List()
	if err != nil {
		return shelf{}, err
	}
	l.shelf, l.listed = arrange(records), time.Now()
	wanted, layers := map[string]bool{}, map[string]bool{}
	for _, r := range l.shelf.all {
		wanted[key(r)] = true
		for _, d := range r.Layers {
			layers[d] = true
		}
		l.begin(r)
	}
	for k := range l.made {
		if !wanted[k] {
			delete(l.made, k)
		}
	}
	for d := range l.layers {
		if !layers[d] { // its headers are closed when its last reader is gone
			delete(l.layers, d)
		}
	}
	return l.shelf, nil
}

// key tells two images apart that had the same name one after the other.
func key(r image.Record) string {
	text, _ := json.Marshal(r) // a record is plain data
	return string(text)
}

// begin makes the manifest of an image, unless that is done or under way. One that failed is tried again, but not at once.
func (l *library) begin(r image.Record) {
	k := key(r)
	if m := l.made[k]; m != nil {
		select {
		case <-m.done:
			if m.err == nil || time.Since(m.ended) < again {
				return
			}
		default:
			return
		}
	}
	m := &making{done: make(chan struct{})}
	l.made[k] = m
	go func() {
		defer close(m.done)
		defer func() { m.ended = time.Now() }()
		select {
		case l.turn <- struct{}{}:
			defer func() { <-l.turn }()
		case <-l.ctx.Done():
			m.err = l.ctx.Err()
			return
		}
		if m.picture, m.err = l.picture(r); m.err != nil && l.ctx.Err() == nil {
			l.failed(r.Name, m.err)
		}
	}()
}

// errNotYet is the answer while an image's layers are being read.
var errNotYet = errors.New("the image is being read for its digests")

// get returns an image as it is served. It waits until ctx ends for one that is being read.
func (l *library) get(ctx context.Context, r image.Record) (picture, error) {
	l.mu.Lock()
	m := l.made[key(r)]
	l.mu.Unlock()
	if m == nil { // removed since it was listed
		return picture{}, errGone
	}
	select {
	case <-m.done:
		return m.picture, m.err
	case <-ctx.Done():
		return picture{}, errNotYet
	}
}

var errGone = errors.New("the image was removed")

// picture makes an image's documents. They depend on its record and its layers alone: the same image has the same digest after a
// restart, and on another host that pulled it from here.
func (l *library) picture(r image.Record) (picture, error) {
	system, rest, _ := strings.Cut(cmp.Or(r.Platform, "linux/"+runtime.GOARCH), "/")
	arch, variant, _ := strings.Cut(rest, "/")
	config := v1.ConfigFile{
		Architecture: arch, OS: system, Variant: variant, Created: v1.Time{Time: r.Created},
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Env: r.Config.Env, Entrypoint: r.Config.Entrypoint, Cmd: r.Config.Cmd,
			WorkingDir: r.Config.WorkingDir, User: r.Config.User, StopSignal: r.Config.StopSignal,
		},
	}
	manifest := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	p := picture{blobs: map[string]*layer{}}
	for _, d := range r.Layers {
		y, err := l.layer(d)
		if err != nil {
			return picture{}, err
		}
		hash, err := v1.NewHash(y.digest)
		if err != nil {
			return picture{}, err
		}
		p.blobs[y.digest] = y
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, hash)
		manifest.Layers = append(manifest.Layers, v1.Descriptor{MediaType: types.OCIUncompressedLayer, Digest: hash, Size: y.size})
	}
	var err error
	if p.config, err = json.Marshal(config); err != nil {
		return picture{}, err
	}
	hash, size, err := v1.SHA256(bytes.NewReader(p.config))
	if err != nil {
		return picture{}, err
	}
	p.blobs[hash.String()] = nil
	manifest.Config = v1.Descriptor{MediaType: types.OCIConfigJSON, Digest: hash, Size: size}
	if p.manifest, err = json.Marshal(manifest); err != nil {
		return picture{}, err
	}
	sum := sha256.Sum256(p.manifest)
	p.digest = "sha256:" + hex.EncodeToString(sum[:])
	return p, nil
}

// layer returns the stream of a layer. The caller has the turn.
func (l *library) layer(digest string) (*layer, error) {
	l.mu.Lock()
	y := l.layers[digest]
	l.mu.Unlock()
	if y != nil {
		return y, nil
	}
	hex, ok := strings.CutPrefix(digest, "sha256:")
	if !ok {
		return nil, fmt.Errorf("a layer with the digest %q", digest)
	}
	y, err := openLayer(l.ctx, filepath.Join(l.dirs.Layers(), hex), filepath.Join(l.dirs.Images(), "tmp"))
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.layers[digest] = y
	l.mu.Unlock()
	return y, nil
}
