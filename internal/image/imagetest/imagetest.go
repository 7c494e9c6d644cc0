// Package imagetest makes images for tests: layers from a table of entries, archives and layouts from layers, and a
// small real system from the host's static busybox.
package imagetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"berth/test/testkit"
)

// Entry is one entry of a layer. The zero Type is a regular file, the zero Mode 0755 for folders and 0644 otherwise.
type Entry struct {
	Name   string
	Type   byte // tar.TypeReg, tar.TypeDir …
	Mode   int64
	UID    int
	GID    int
	Link   string // target of a symbolic or hard link
	Data   string
	Xattrs map[string]string
	ACL    string // as text
	Major  int64
	Minor  int64
}

// Config is the part of an image's configuration that tests set.
type Config struct {
	Env        []string `json:",omitempty"`
	Entrypoint []string `json:",omitempty"`
	Cmd        []string `json:",omitempty"`
	WorkingDir string   `json:",omitempty"`
	User       string   `json:",omitempty"`
	StopSignal string   `json:",omitempty"`
}

// Image is the content of an archive or layout: layers as plain tar streams, lowest first.
type Image struct {
	Arch   string // GOARCH name; "" is amd64
	Config Config
	Layers [][]byte
}

// Layer packs entries into a plain tar stream.
func Layer(t testing.TB, entries ...Entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := &tar.Header{
			Name: e.Name, Typeflag: e.Type, Mode: e.Mode, Uid: e.UID, Gid: e.GID,
			Linkname: e.Link, Size: int64(len(e.Data)), Devmajor: e.Major, Devminor: e.Minor,
		}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o644
			if e.Type == tar.TypeDir {
				h.Mode = 0o755
			}
		}
		for k, v := range e.Xattrs {
			if h.PAXRecords == nil {
				h.PAXRecords = map[string]string{}
			}
			h.PAXRecords["SCHILY.xattr."+k] = v
		}
		if e.ACL != "" {
			h.PAXRecords = map[string]string{"SCHILY.acl.access": e.ACL}
		}
		testkit.Must(t, w.WriteHeader(h))
		_, err := w.Write([]byte(e.Data))
		testkit.Must(t, err)
	}
	testkit.Must(t, w.Close())
	return buf.Bytes()
}

// Gzip compresses a layer.
func Gzip(t testing.TB, plain []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	_, err := w.Write(plain)
	testkit.Must(t, err)
	testkit.Must(t, w.Close())
	return buf.Bytes()
}

// Digest returns the sha256 digest of data in the form of the OCI image specification.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// configJSON returns the image's configuration blob, which is the same in both kinds of archive.
func (i Image) configJSON(t testing.TB) []byte {
	diffs := []string{}
	for _, l := range i.Layers {
		diffs = append(diffs, Digest(l))
	}
	return toJSON(t, map[string]any{
		"architecture": i.arch(), "os": "linux", "created": "2024-05-01T12:00:00Z", "config": i.Config,
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffs},
	})
}

func (i Image) arch() string {
	if i.Arch == "" {
		return "amd64"
	}
	return i.Arch
}

// OCILayout writes images as one OCI image layout (an index if there are several) and returns its folder. It compresses
// layers with gzip.
func OCILayout(t testing.TB, images ...Image) string {
	t.Helper()
	dir := t.TempDir()
	blob := func(media string, data []byte) map[string]any {
		d := Digest(data)
		path := filepath.Join(dir, "blobs", "sha256", d[len("sha256:"):])
		testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testkit.Must(t, os.WriteFile(path, data, 0o644))
		return map[string]any{"mediaType": media, "digest": d, "size": len(data)}
	}
	manifests := []any{}
	for _, i := range images {
		layers := []any{}
		for _, l := range i.Layers {
			layers = append(layers, blob("application/vnd.oci.image.layer.v1.tar+gzip", Gzip(t, l)))
		}
		d := blob("application/vnd.oci.image.manifest.v1+json", toJSON(t, map[string]any{
			"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
			"config": blob("application/vnd.oci.image.config.v1+json", i.configJSON(t)), "layers": layers,
		}))
		d["platform"] = map[string]string{"architecture": i.arch(), "os": "linux"}
		manifests = append(manifests, d)
	}
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "index.json"), toJSON(t, map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests,
	}), 0o644))
	return dir
}

// OCIArchive writes images as a tar of an OCI image layout and returns its path.
func OCIArchive(t testing.TB, images ...Image) string {
	t.Helper()
	dir := OCILayout(t, images...)
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	testkit.Must(t, w.AddFS(os.DirFS(dir)))
	testkit.Must(t, w.Close())
	return write(t, "oci.tar", buf.Bytes())
}

// DockerArchive writes an image as docker save does (plain layers) and returns its path.
func DockerArchive(t testing.TB, tag string, i Image) string {
	t.Helper()
	return DockerArchives(t, map[string]Image{tag: i})
}

// DockerArchives is DockerArchive for several images by tag. The archive has them sorted by tag.
func DockerArchives(t testing.TB, images map[string]Image) string {
	t.Helper()
	var entries []Entry
	manifest := []any{}
	for _, tag := range slices.Sorted(maps.Keys(images)) {
		i := images[tag]
		config := i.configJSON(t)
		name := Digest(config)[len("sha256:"):] + ".json"
		entries = append(entries, Entry{Name: name, Data: string(config)})
		layers := []string{}
		for _, l := range i.Layers {
			dir := Digest(l)[len("sha256:"):]
			layers = append(layers, dir+"/layer.tar")
			entries = append(entries, Entry{Name: dir + "/", Type: tar.TypeDir}, Entry{Name: dir + "/layer.tar", Data: string(l)})
		}
		tags := []string{}
		if tag != "" {
			tags = append(tags, tag)
		}
		manifest = append(manifest, map[string]any{"Config": name, "RepoTags": tags, "Layers": layers})
	}
	return write(t, "docker.tar", Layer(t, append(entries, Entry{Name: "manifest.json", Data: string(toJSON(t, manifest))})...))
}

func write(t testing.TB, name string, data []byte) string {
	path := filepath.Join(t.TempDir(), name)
	testkit.Must(t, os.WriteFile(path, data, 0o644))
	return path
}

func toJSON(t testing.TB, v any) []byte {
	data, err := json.Marshal(v)
	testkit.Must(t, err)
	return data
}
