package registry

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"berth/internal/image/media"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/refuse"
)

// found is an image in a registry.
type found struct {
	top      v1.Hash // what the reference stands for: an index or a manifest
	manifest manifest
	config   []byte
	diffIDs  []v1.Hash // of the unpacked layers
}

// manifest is an image's manifest and its text.
type manifest struct {
	v1.Manifest
	text []byte
}

func (m manifest) digest() v1.Hash {
	h, _, _ := v1.SHA256(bytes.NewReader(m.text)) // never fails
	return h
}

// Limits on the documents that a registry sends about an image.
const (
	mostLayers  = 500      // as many as overlay takes
	mostEntries = 1000     // of an index
	mostDepth   = 3        // of indexes in indexes
	mostBytes   = 64 << 30 // of all layers; the limit of what they unpack to
	mostConfig  = 8 << 20  // of a configuration; a manifest has the same limit (see guard)
)

// platformOf reads os/arch[/variant]; "" is this machine's.
func platformOf(text string) (v1.Platform, error) {
	if text == "" {
		return v1.Platform{OS: "linux", Architecture: runtime.GOARCH}, nil
	}
	want, err := v1.ParsePlatform(text)
	if err != nil || want.OS == "" || want.Architecture == "" || want.OSVersion != "" {
		return v1.Platform{}, refuse.Invalidf("--platform %q is not OS/ARCH, as linux/amd64 or linux/arm/v7", text)
	}
	return *want, nil
}

// resolve finds the image that the reference means on a platform.
func (p *puller) resolve(ctx context.Context, want v1.Platform) (*found, error) {
	d, err := p.get(ctx, p.ref)
	if err != nil {
		return nil, err
	}
	out := &found{top: d.Digest}
	for depth := 0; media.Of(d.MediaType).IsIndex(); depth++ {
		var index v1.IndexManifest
		if err := jsonfile.Foreign(d.Manifest, &index, "the index of "+p.ref.String()); err != nil {
			return nil, err
		}
		if depth >= mostDepth || len(index.Manifests) > mostEntries {
			return nil, refuse.Invalidf("the index of %s is nested too deep or too long", p.ref)
		}
		entry, err := p.pick(index, want)
		if err != nil {
			return nil, err
		}
		if d, err = p.get(ctx, p.ref.Context().Digest(entry.Digest.String())); err != nil {
			return nil, err
		}
	}
	if !media.Of(d.MediaType).IsImage() {
		return nil, p.foreign(d.MediaType)
	}
	out.manifest.text = d.Manifest
	if err := jsonfile.Foreign(d.Manifest, &out.manifest.Manifest, "the manifest of "+p.ref.String()); err != nil {
		return nil, err
	}
	if err := p.check(out.manifest.Manifest); err != nil {
		return nil, err
	}
	return out, p.readConfig(ctx, out)
}

// get reads a manifest or an index. One that is named by its digest is verified.
func (p *puller) get(ctx context.Context, ref name.Reference) (*remote.Descriptor, error) {
	return remote.Get(ref, remote.WithTransport(p.http), remote.WithContext(ctx))
}

// pick returns the entry of an index for a platform.
func (p *puller) pick(index v1.IndexManifest, want v1.Platform) (v1.Descriptor, error) {
	var have []string
	images := slices.DeleteFunc(slices.Clone(index.Manifests), func(d v1.Descriptor) bool {
		return media.IsArtifact(d.ArtifactType) || d.MediaType != "" && !media.IsDocument(d.MediaType) || // such as a list of the image's parts
			d.Platform != nil && d.Platform.OS == "unknown" // an attestation
	})
	for _, d := range images {
		switch {
		case d.Platform == nil && len(images) == 1:
			return d, nil
		case d.Platform == nil:
			continue
		case d.Platform.Satisfies(want):
			return d, nil
		}
		have = append(have, clean(d.Platform.String()))
	}
	slices.Sort(have)
	have = slices.Compact(have)
	if more := len(have) - 30; more > 0 {
		have = append(have[:30], "and more")
	}
	there := "there is none at all"
	if len(have) > 0 {
		there = "there are " + strings.Join(have, ", ")
	}
	return v1.Descriptor{}, refuse.Cannotf("--platform takes one of these, for looking at it", "%s has no image for %s; %s", p.ref, want, there)
}

// foreign refuses a document that is no image.
func (p *puller) foreign(t types.MediaType) error {
	if t = media.Of(t); t == types.DockerManifestSchema1 || t == types.DockerManifestSchema1Signed {
		return &refuse.Error{
			Kind: refuse.Invalid, What: p.ref.String() + " is in Docker's old format (schema 1), which names no digests of its layers' content",
			Remedy: "push it again with any Docker or Podman since 2016",
		}
	}
	return refuse.Invalidf("%s is no image: the registry calls it %q", p.ref, clean(string(t)))
}

// check refuses a manifest that no image has.
func (p *puller) check(m v1.Manifest) error {
	if t := m.Config.MediaType; media.IsArtifact(m.ArtifactType) || !media.IsConfig(t) {
		return refuse.Invalidf("%s is no image: it is of type %q", p.ref, clean(cmp.Or(m.ArtifactType, string(t))))
	}
	if len(m.Layers) == 0 || len(m.Layers) > mostLayers {
		return refuse.Invalidf("%s has %d layers; 1 to %d are taken", p.ref, len(m.Layers), mostLayers)
	}
	if m.Config.Size < 0 || m.Config.Size > mostConfig {
		return refuse.Invalidf("the configuration of %s has %d bytes: too many", p.ref, m.Config.Size)
	}
	sizes := map[v1.Hash]int64{m.Config.Digest: m.Config.Size}
	sum := int64(0)
	for _, l := range m.Layers {
		switch size, twice := sizes[l.Digest]; {
		case l.Digest.Algorithm != "sha256" || m.Config.Digest.Algorithm != "sha256":
			return refuse.Invalidf("%s names its parts by another digest than sha256", p.ref)
		case len(l.URLs) > 0 || media.IsForeign(l.MediaType):
			return &refuse.Error{
				Kind: refuse.Invalid, What: "a layer of " + p.ref.String() + " lies elsewhere than in the registry (a foreign layer)",
				Remedy: "Berth fetches from the registry alone; push the image with its layers",
			}
		case !media.IsLayer(l.MediaType):
			return refuse.Invalidf("a layer of %s is of type %q, which is none of an image", p.ref, clean(string(l.MediaType)))
		case l.Size < 0 || l.Size > mostBytes || twice && size != l.Size:
			return refuse.Invalidf("the layer %s of %s cannot have %d bytes", l.Digest, p.ref, l.Size)
		case !twice:
			sizes[l.Digest] = l.Size
			sum += l.Size
		}
		if sum > mostBytes {
			return refuse.Invalidf("the layers of %s have more than %d GiB", p.ref, mostBytes>>30)
		}
	}
	return nil
}

// readConfig fetches the image's configuration.
func (p *puller) readConfig(ctx context.Context, img *found) error {
	want := img.manifest.Config
	body, err := p.open(ctx, &blob{digest: want.Digest, size: want.Size}, 0)
	if err != nil {
		return err
	}
	defer body.Close()
	if img.config, err = io.ReadAll(io.LimitReader(body, want.Size+1)); err != nil {
		return fmt.Errorf("read the configuration of %s: %w", p.ref, err)
	}
	if h, n, _ := v1.SHA256(bytes.NewReader(img.config)); h != want.Digest || n != want.Size {
		return p.damaged("the configuration of "+p.ref.String(), h)
	}
	var config v1.ConfigFile
	if err := jsonfile.Foreign(img.config, &config, "the configuration of "+p.ref.String()); err != nil {
		return err
	}
	img.diffIDs = config.RootFS.DiffIDs
	if len(img.diffIDs) != len(img.manifest.Layers) {
		return refuse.Invalidf("%s has %d layers and its configuration names %d", p.ref, len(img.manifest.Layers), len(img.diffIDs))
	}
	for _, id := range img.diffIDs {
		if id.Algorithm != "sha256" {
			return refuse.Invalidf("%s names its parts by another digest than sha256", p.ref)
		}
	}
	return nil
}
