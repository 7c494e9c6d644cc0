package image

import (
	"errors"
	"io/fs"
	"runtime"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/internal/sys/refuse"
)

// manifest is an index if it has Manifests, else the manifest of one image.
type manifest struct {
	v1.Manifest
	Manifests []v1.Descriptor `json:"manifests"`
}

// dockerManifest is an entry of docker save's manifest.json.
type dockerManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// found is one image in a source, ready to be unpacked.
type found struct {
	digest string // of the manifest; for a docker archive, of the configuration
	tag    string // name in the archive, or ""
	from   string // where the archive came from, or ""
	config v1.ConfigFile
	layers []layerFile // lowest first, one for each diff id of config
}

// findImage finds the image that pick means: a name from the archive, with or without ":latest", or the beginning of a
// digest. Without pick it takes the image called name if there is one, else the only one for this machine. Both may be
// "".
func findImage(s source, pick, name string) (found, error) {
	var all []found
	var err error
	r, _, ociErr := s.open("oci-layout")
	switch {
	case ociErr == nil:
		r.Close()
		all, err = ociImages(s)
	case errors.Is(ociErr, fs.ErrNotExist):
		all, err = dockerImages(s)
	default:
		err = readErr("oci-layout", ociErr)
	}
	if err != nil {
		return found{}, err
	}
	if len(all) == 0 {
		return found{}, refuse.Invalidf("the archive holds no image")
	}
	asked := all
	if pick != "" {
		if asked = picked(all, pick); len(asked) == 0 {
			return found{}, &refuse.Error{
				Kind: refuse.NotFound, What: "the archive holds no image " + pick, Remedy: "it holds " + listed(all),
			}
		}
	}
	fits := slices.DeleteFunc(slices.Clone(asked), func(f found) bool { return !here(f.config.OS, f.config.Architecture) })
	if err := fit(asked, false); err != nil {
		return found{}, err
	}
	for _, f := range fits {
		if pick == "" && name != "" && f.tag == name {
			return f, nil
		}
	}
	if slices.ContainsFunc(fits, func(f found) bool { return f.digest != fits[0].digest }) {
		return found{}, &refuse.Error{
			Kind: refuse.Invalid, What: "the archive holds several images: " + listed(fits), Remedy: "say which: berth image import ARCHIVE NAME --pick IMAGE",
		}
	}
	return fits[0], nil // one image, perhaps with several tags
}

// pulledImage reads the image of a manifest from a folder of blobs.
func pulledImage(s source, manifestDigest string, foreign bool) (found, error) {
	digest, err := v1.NewHash(manifestDigest)
	if err != nil {
		return found{}, refuse.Invalidf("%w", err)
	}
	var m manifest
	if err := readBlob(s, digest, &m); err != nil {
		return found{}, err
	}
	all, err := ociImage(s, digest, "", m)
	if err != nil {
		return found{}, err
	}
	return all[0], fit(all, foreign)
}

// fit refuses images of which none is for this machine.
func fit(all []found, foreign bool) error {
	if foreign || slices.ContainsFunc(all, func(f found) bool { return here(f.config.OS, f.config.Architecture) }) {
		return nil
	}
	return refuse.Cannotf("take an image for this machine", "the image is for %s, this machine is linux/%s", platforms(all), runtime.GOARCH)
}

// picked returns the images that pick can mean: those with that name, else those whose digest begins so.
func picked(all []found, pick string) []found {
	for _, fits := range []func(found) bool{
		func(f found) bool { return f.tag == pick },
		func(f found) bool { return f.tag == pick+":latest" },
		func(f found) bool {
			hex := strings.TrimPrefix(pick, "sha256:")
			return len(hex) >= shortDigest && strings.HasPrefix(f.digest, "sha256:"+hex)
		},
	} {
		if some := slices.DeleteFunc(slices.Clone(all), func(f found) bool { return !fits(f) }); len(some) > 0 {
			return some
		}
	}
	return nil
}

// shortDigest is the fewest hexadecimal digits of a digest that pick an image.
const shortDigest = 12

// listed returns at most 20 images for a message: each by its name if no other image has the same, else by its digest.
func listed(all []found) string {
	var names []string
	for _, f := range all {
		name := f.tag
		if name == "" || slices.ContainsFunc(all, func(g found) bool { return g.tag == f.tag && g.digest != f.digest }) {
			name = f.digest[:min(len(f.digest), len("sha256:")+shortDigest)]
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if more := len(names) - 20; more > 0 {
		names = append(names[:20], strconv.Itoa(more)+" more")
	}
	return strings.Join(names, ", ")
}

// here reports whether a platform fits this machine. Absent values fit.
func here(system, arch string) bool {
	return (system == "" || system == "linux") && (arch == "" || arch == runtime.GOARCH)
}

// platform returns the platform of an image that is not for this machine, else "".
func (f *found) platform() string {
	if here(f.config.OS, f.config.Architecture) {
		return ""
	}
	return strings.TrimSuffix(strings.Join([]string{f.config.OS, f.config.Architecture, f.config.Variant}, "/"), "/")
}

func platforms(all []found) string {
	var names []string
	for _, f := range all {
		names = append(names, f.config.OS+"/"+f.config.Architecture)
	}
	return strings.Join(slices.Compact(names), ", ")
}

// ociImages reads all images of an OCI image layout, also those of nested indexes.
func ociImages(s source) ([]found, error) {
	var top manifest
	if _, err := readDocument(s, "index.json", "", &top); err != nil {
		return nil, err
	}
	return walkIndex(s, top.Manifests, "", 0)
}

// walkIndex reads the images of an index. tag is the index's own name.
func walkIndex(s source, entries []v1.Descriptor, tag string, depth int) ([]found, error) {
	if depth > 3 || len(entries) > 1000 {
		return nil, refuse.Invalidf("the image's index is nested too deep or too long")
	}
	var all []found
	for _, d := range entries {
		if d.Platform != nil && !here(d.Platform.OS, d.Platform.Architecture) && len(entries) > 1 {
			continue // another platform, or an attestation (unknown/unknown); its blobs may be absent
		}
		name := tag
		// docker save (since 25) writes the whole name into the second key and only the tag into the first.
		for _, key := range []string{"org.opencontainers.image.ref.name", "io.containerd.image.name"} {
			if v := d.Annotations[key]; v != "" {
				name = v
			}
		}
		var m manifest
		if err := readBlob(s, d.Digest, &m); err != nil {
			return nil, err
		}
		var more []found
		var err error
		if m.Manifests != nil {
			more, err = walkIndex(s, m.Manifests, name, depth+1)
		} else {
			more, err = ociImage(s, d.Digest, name, m)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return all, nil
}

// ociImage reads one image's configuration.
func ociImage(s source, digest v1.Hash, tag string, m manifest) ([]found, error) {
	f := found{digest: digest.String(), tag: tag}
	if err := readBlob(s, m.Config.Digest, &f.config); err != nil {
		return nil, err
	}
	for _, l := range m.Layers {
		file, err := blobPath(l.Digest.String())
		if err != nil {
			return nil, err
		}
		f.layers = append(f.layers, layerFile{path: file, digest: l.Digest.String()})
	}
	return []found{f}, f.match()
}

// dockerImages reads what docker save writes.
func dockerImages(s source) ([]found, error) {
	r, _, err := s.open("manifest.json")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse.Invalidf("this is neither an OCI image (oci-layout, index.json), nor a docker archive (manifest.json), "+
			"nor a tar of a root (%s at its top); a folder that is a root needs no import: image: dir:PATH", strings.Join(rootFolders(), ", "))
	}
	if err != nil {
		return nil, readErr("manifest.json", err)
	}
	r.Close()
	var entries []dockerManifest
	if _, err := readDocument(s, "manifest.json", "", &entries); err != nil {
		return nil, err
	}
	var all []found
	for _, e := range entries {
		var f found
		if f.digest, err = readDocument(s, e.Config, "", &f.config); err != nil {
			return nil, err
		}
		for _, l := range e.Layers {
			f.layers = append(f.layers, layerFile{path: l})
		}
		if err := f.match(); err != nil {
			return nil, err
		}
		if len(e.RepoTags) == 0 {
			all = append(all, f)
		}
		for _, tag := range e.RepoTags {
			f.tag = tag
			all = append(all, f)
		}
	}
	return all, nil
}

// match sets each layer's diffID from the configuration.
func (f *found) match() error {
	ids := f.config.RootFS.DiffIDs
	if len(ids) != len(f.layers) {
		return refuse.Invalidf("the image has %d layers and its configuration names %d", len(f.layers), len(ids))
	}
	for i, id := range ids {
		if _, err := parseDigest(id.String()); err != nil {
			return err
		}
		f.layers[i].diffID = id.String()
	}
	return nil
}

// runConfig returns the part of the configuration that a node uses.
func (f *found) runConfig() Config {
	c := f.config.Config
	return Config{
		Env: c.Env, Entrypoint: c.Entrypoint, Cmd: c.Cmd,
		WorkingDir: c.WorkingDir, User: c.User, StopSignal: c.StopSignal,
	}
}
