package image

import (
	"errors"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"time"

	"berth/internal/refuse"
)

// The documents of the OCI image specification and of docker save, as far as they are used here.
type (
	descriptor struct {
		Digest      string            `json:"digest"`
		Size        int64             `json:"size"`
		MediaType   string            `json:"mediaType"`
		Platform    *platform         `json:"platform"`
		Annotations map[string]string `json:"annotations"`
	}
	platform struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
	}
	// manifest is an index when it has manifests, else an image's manifest.
	manifest struct {
		Manifests []descriptor `json:"manifests"`
		Config    descriptor   `json:"config"`
		Layers    []descriptor `json:"layers"`
	}
	configFile struct {
		platform
		Created time.Time `json:"created"`
		Config  struct {
			Env        []string
			Entrypoint []string
			Cmd        []string
			WorkingDir string
			User       string
			StopSignal string
		} `json:"config"`
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	dockerManifest struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
)

// found is one image in a source, ready to be unpacked.
type found struct {
	digest string // of the manifest (of the configuration for a docker archive)
	tag    string // the name the archive gives it, or ""
	config configFile
	layers []layerFile // lowest first, as many as config has diff ids
}

// layerFile is one layer in a source.
type layerFile struct {
	path   string // in the source
	digest string // of the file; "" where the archive says none
	diffID string // of the plain tar stream
}

// findImage picks one image of a source: the one called name if there is such a one, else the only one that fits this
// machine. name may be "".
func findImage(s source, name string) (found, error) {
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
	fits := slices.DeleteFunc(slices.Clone(all), func(f found) bool { return !here(f.config.platform) })
	if len(fits) == 0 && len(all) > 0 {
		return found{}, refuse.Cannotf("import an image for this machine",
			"the image is for %s, this machine is linux/%s", platforms(all), runtime.GOARCH)
	}
	return pick(fits, name)
}

func pick(all []found, name string) (found, error) {
	for _, f := range all {
		if name != "" && f.tag == name {
			return f, nil
		}
	}
	if len(all) == 0 {
		return found{}, refuse.Invalidf("the archive holds no image")
	}
	if !slices.ContainsFunc(all, func(f found) bool { return f.digest != all[0].digest }) {
		return all[0], nil // one image, perhaps with several tags
	}
	var tags []string
	for _, f := range all {
		tags = append(tags, f.tag)
	}
	return found{}, refuse.Invalidf("the archive holds %d images: name one of %s", len(all), strings.Join(tags, ", "))
}

// here reports whether an image's configuration fits this machine. Absent values fit.
func here(p platform) bool {
	return (p.OS == "" || p.OS == "linux") && (p.Architecture == "" || p.Architecture == runtime.GOARCH)
}

func platforms(all []found) string {
	var names []string
	for _, f := range all {
		names = append(names, f.config.OS+"/"+f.config.Architecture)
	}
	return strings.Join(slices.Compact(names), ", ")
}

// ociImages reads an OCI image layout: all images of its index and the indexes below.
func ociImages(s source) ([]found, error) {
	var top manifest
	if _, err := readDocument(s, "index.json", "", &top); err != nil {
		return nil, err
	}
	return walkIndex(s, top.Manifests, "", 0)
}

// walkIndex reads the images of an index; tag is the name the index itself has.
func walkIndex(s source, entries []descriptor, tag string, depth int) ([]found, error) {
	if depth > 3 || len(entries) > 1000 {
		return nil, refuse.Invalidf("the image's index is nested too deep or too long")
	}
	var all []found
	for _, d := range entries {
		if d.Platform != nil && !here(*d.Platform) && len(entries) > 1 {
			continue // another machine's, or an attestation (platform unknown/unknown); its blobs may be absent
		}
		name := tag
		// docker save (since 25) writes the whole name into the second, and only the tag into the first.
		for _, key := range []string{"org.opencontainers.image.ref.name", "io.containerd.image.name"} {
			if v := d.Annotations[key]; v != "" {
				name = v
			}
		}
		file, err := blobPath(d.Digest)
		if err != nil {
			return nil, err
		}
		var m manifest
		if _, err := readDocument(s, file, d.Digest, &m); err != nil {
			return nil, err
		}
		var more []found
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
func ociImage(s source, digest, tag string, m manifest) ([]found, error) {
	f := found{digest: digest, tag: tag}
	file, err := blobPath(m.Config.Digest)
	if err != nil {
		return nil, err
	}
	if _, err := readDocument(s, file, m.Config.Digest, &f.config); err != nil {
		return nil, err
	}
	for _, l := range m.Layers {
		file, err := blobPath(l.Digest)
		if err != nil {
			return nil, err
		}
		f.layers = append(f.layers, layerFile{path: file, digest: l.Digest})
	}
	return []found{f}, f.match()
}

// dockerImages reads what docker save writes.
func dockerImages(s source) ([]found, error) {
	r, _, err := s.open("manifest.json")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse.Invalidf("this is neither an OCI image (oci-layout, index.json) nor a docker archive (manifest.json)")
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

// match gives each layer its digest of the plain stream.
func (f *found) match() error {
	ids := f.config.RootFS.DiffIDs
	if len(ids) != len(f.layers) {
		return refuse.Invalidf("the image has %d layers and its configuration names %d", len(f.layers), len(ids))
	}
	for i, id := range ids {
		if _, err := parseDigest(id); err != nil {
			return err
		}
		f.layers[i].diffID = id
	}
	return nil
}

// runConfig is what of the configuration a node uses.
func (f *found) runConfig() Config {
	c := f.config.Config
	return Config{
		Env: c.Env, Entrypoint: c.Entrypoint, Cmd: c.Cmd,
		WorkingDir: c.WorkingDir, User: c.User, StopSignal: c.StopSignal,
	}
}
