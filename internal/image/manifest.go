package image

import (
	"cmp"
	"errors"
	"io/fs"
	"runtime"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/internal/image/media"
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
	pulled bool   // it was pulled: the source has only those of its layers that the store lacked
	config v1.ConfigFile
	layers []layerFile // lowest first, one for each diff id of config
	beside []string    // what the source holds that is no image
}

// artifact returns what a manifest or an index is that is no image, such as a list of the image's parts or a signature beside it, by its
// media type; "" if it is an image.
func (m *manifest) artifact() string {
	if media.IsArtifact(m.ArtifactType) {
		return m.ArtifactType
	}
	if t := media.Of(m.Config.MediaType); t != "" && !media.IsConfig(t) {
		return string(t)
	}
	for _, l := range m.Layers {
		if t := media.Of(l.MediaType); t != "" && !media.IsLayer(t) {
			return string(t)
		}
	}
	return ""
}

// findImage finds the image that pick means: a name from the archive, with or without ":latest", or the beginning of a
// digest. Without pick it takes the image called name if there is one, else the only one for this machine. Both may be
// "".
func findImage(src source, pick, name string) (found, error) {
	s := &documents{source: src, left: maxDocuments}
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
	if len(all) == 0 && len(s.others) > 0 {
		return found{}, fit(s.others, false)
	}
	if len(all) == 0 {
		return found{}, refuse.Invalidf("the archive holds no image; it holds %s", cmp.Or(strings.Join(s.passed, ", "), "nothing else"))
	}
	for i := range all {
		all[i].beside = s.passed
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
func pulledImage(src source, manifestDigest string, foreign bool) (found, error) {
	digest, err := v1.NewHash(manifestDigest)
	if err != nil {
		return found{}, refuse.Invalidf("%w", err)
	}
	s := &documents{source: src, left: maxDocuments}
	var m manifest
	if err := s.blob(digest, &m); err != nil {
		return found{}, err
	}
	all, err := ociImage(s, digest, "", m)
	if err != nil {
		return found{}, err
	}
	all[0].pulled = true
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
	slices.Sort(names)
	return shown(strings.Join(slices.Compact(names), ", "))
}

// ociImages reads all images of an OCI image layout, also those of nested indexes.
func ociImages(s *documents) ([]found, error) {
	var top manifest
	if _, err := s.read("index.json", "", &top); err != nil {
		return nil, err
	}
	return walkIndex(s, top.Manifests, "", 0)
}

// maxImages is the most images of an archive. One with two names counts as two.
const maxImages = 1000

// tooMany refuses an archive of more images.
func tooMany(n int) error {
	if n > maxImages {
		return refuse.Invalidf("the archive holds more than %d images", maxImages)
	}
	return nil
}

// walkIndex reads the images of an index. tag is the index's own name.
func walkIndex(s *documents, entries []v1.Descriptor, tag string, depth int) ([]found, error) {
	if depth > 3 || len(entries) > maxImages {
		return nil, refuse.Invalidf("the image's index is nested too deep or too long")
	}
	var all []found
	for _, d := range entries {
		if d.Platform != nil && !here(d.Platform.OS, d.Platform.Architecture) && len(entries) > 1 {
			if d.Platform.OS != "unknown" && len(s.others) < 20 { // an attestation is unknown/unknown
				s.others = append(s.others, found{config: v1.ConfigFile{OS: d.Platform.OS, Architecture: d.Platform.Architecture}})
			}
			continue // its blobs may be absent
		}
		name := tag
		// docker save (since 25) writes the whole name into the second key and only the tag into the first.
		for _, key := range []string{"org.opencontainers.image.ref.name", "io.containerd.image.name"} {
			if v := d.Annotations[key]; v != "" {
				name = v
			}
		}
		if t := media.Of(d.MediaType); media.IsArtifact(d.ArtifactType) || t != "" && !media.IsDocument(t) {
			s.pass(cmp.Or(d.ArtifactType, string(t)), name)
			continue
		}
		var m manifest
		if err := s.blob(d.Digest, &m); err != nil {
			return nil, err
		}
		if t := m.artifact(); t != "" {
			s.pass(t, name)
			continue
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
		if err := tooMany(len(all)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// ociImage reads one image's configuration.
func ociImage(s *documents, digest v1.Hash, tag string, m manifest) ([]found, error) {
	f := found{digest: digest.String(), tag: tag}
	if err := s.blob(m.Config.Digest, &f.config); err != nil {
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
func dockerImages(s *documents) ([]found, error) {
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
	if _, err := s.read("manifest.json", "", &entries); err != nil {
		return nil, err
	}
	var all []found
	for _, e := range entries {
		if err := tooMany(len(all) + len(e.RepoTags)); err != nil {
			return nil, err
		}
		var f found
		if f.digest, err = s.read(e.Config, "", &f.config); err != nil {
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

// maxCommand is the most bytes of what an image says of its command. It is in the image's record, which each command reads; and the kernel
// starts no program with much more (MAX_ARG_STRLEN, ARG_MAX).
const maxCommand = 1 << 20

// runConfig returns the part of the configuration that a node uses.
func (f *found) runConfig() (Config, error) {
	c := f.config.Config
	own := Config{
		Env: c.Env, Entrypoint: c.Entrypoint, Cmd: c.Cmd,
		WorkingDir: c.WorkingDir, User: c.User, StopSignal: c.StopSignal,
	}
	if n := own.bytes(); n > maxCommand {
		return Config{}, refuse.Invalidf("the image's command, its environment and its user are %d bytes; a node starts none of more than %d", n, maxCommand)
	}
	return own, nil
}
