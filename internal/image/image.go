// Package image stores images (imported archives, unpacked layer by layer) and returns the folders that make up a
// node's root: the layers, the delta that takes its writes, or the skeleton of image host.
//
// It makes and removes folders and never mounts; package mounts builds the overlay. It reads archives with its own code
// on archive/tar and openat2, not with go-containerregistry or containerd's archive package: neither reads an OCI
// archive without unpacking it first, neither verifies a local layer while reading it, and containerd's resolves names
// in user space. openat2 leaves that to the kernel, which confines every path whatever its symbolic links.
// This costs one dependency (zstd).
package image

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"berth/internal/spec/vnode"
	"berth/internal/storage/packed"
	"berth/internal/sys/refuse"
)

// Config is the part of an image's configuration that says how to run it.
type Config struct {
	Env        []string `json:"env,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	WorkingDir string   `json:"working_dir,omitempty"`
	User       string   `json:"user,omitempty"` // "", "uid", "name", "uid:gid", "name:group"
	StopSignal string   `json:"stop_signal,omitempty"`
}

// Command returns the image's own command: entry point and arguments. It is empty if the image has none.
func (c Config) Command() []string { return append(append([]string{}, c.Entrypoint...), c.Cmd...) }

// bytes returns the length of all texts, each with some bytes more.
func (c Config) bytes() int {
	sum := 0
	for _, text := range slices.Concat(c.Env, c.Entrypoint, c.Cmd, []string{c.WorkingDir, c.User, c.StopSignal}) {
		sum += len(text) + 8
	}
	return sum
}

// Record is one image in the store.
type Record struct {
	Version  int       `json:"version"` // of this format
	Name     string    `json:"name"`
	Manifest string    `json:"manifest"`       // digest of the manifest; a docker archive has none: digest of the configuration
	From     string    `json:"from,omitempty"` // where it was pulled from, with the digest that its tag stood for
	Layers   []string  `json:"layers"`         // digests of the uncompressed layers ("sha256:…"), lowest first, each once
	Config   Config    `json:"config"`
	Size     int64     `json:"size"`               // bytes of all files in all layers, unpacked
	Platform string    `json:"platform,omitempty"` // "os/arch[/variant]" of an image that is not for this machine
	Created  time.Time `json:"created"`            // when the image was made
	Imported time.Time `json:"imported"`           // when it was imported here

	Skipped []string `json:"skipped,omitempty"`       // device nodes that the import left out, because every node has them
	NoACLs  int      `json:"acls_left_out,omitempty"` // access control lists that could not be kept: they name users without numbers, or are of FIFOs
	Beside  []string `json:"passed_over,omitempty"`   // what lay beside the image in its archive and is none: media types, with names
	Broken  string   `json:"broken,omitempty"`        // why the record cannot be read; then all fields but Name are empty

	// For an image that is one file: its file system, where it was packed or trusted, and whether the store has a copy.
	Packed packed.Kind `json:"packed,omitempty"`
	Places []string    `json:"places,omitempty"`
	Copied bool        `json:"copied,omitempty"`

	NotKept []string `json:"not_kept,omitempty"` // properties that the file system does not keep; set when it is packed, never stored
}

// recordVersion is the version of the record format that this code writes.
const recordVersion = 1

// Image is a spec's image, resolved on this host.
type Image struct {
	Ref      vnode.Image `json:"ref"`
	Plain    bool        `json:"plain,omitempty"`    // image host: no layers; the root is a skeleton with HostRoot's binds
	Manifest string      `json:"manifest,omitempty"` // digest; empty for host and dir
	Layers   []string    `json:"layers,omitempty"`   // digests, lowest first; empty for host and dir
	Lowers   []string    `json:"lowers,omitempty"`   // folders, top layer first, as overlay's lowerdir wants them
	Missing  []string    `json:"missing,omitempty"`  // digests of layers not yet unpacked: the step image.unpack does that
	Config   Config      `json:"config"`

	Packed *packed.File `json:"packed,omitempty"` // of a file image, instead of Lowers
}

// Content says what the root consists of, for a comparison with what the same name stands for later: the digest of its manifest or file, or the
// folder's real path; "" for the host's programs.
func (i Image) Content() string {
	if i.Manifest == "" && len(i.Lowers) > 0 {
		return i.Lowers[0]
	}
	return i.Manifest
}

// maxLayers is the kernel's limit of lower folders per overlay (OVL_MAX_STACK in fs/overlayfs/params.h).
const maxLayers = 500

// parseDigest returns the hexadecimal part of a digest. Digests come from archives and become file names: only sha256
// in its one canonical form passes.
func parseDigest(d string) (string, error) {
	hex, ok := strings.CutPrefix(d, "sha256:")
	if !ok || len(hex) != 64 || strings.Trim(hex, "0123456789abcdef") != "" {
		return "", refuse.Invalidf("%q is not a sha256 digest", d)
	}
	return hex, nil
}

// checkName refuses a name that no record can have.
func checkName(name string) error {
	if name == "" || len(name) > 1000 || strings.ContainsFunc(name, unicode.IsControl) {
		return refuse.Invalidf("%q is not an image name: no control characters, at most 1000 bytes", name)
	}
	return nil
}

// recordFile returns the file name of a record: the escaped image name, or its hash if that is too long.
func recordFile(name string) string {
	file := url.PathEscape(name)
	if len(file) > 200 {
		sum := sha256.Sum256([]byte(name))
		file = hex.EncodeToString(sum[:])
	}
	return file + ".json"
}

// topFirst returns the folders of layers in overlay's order. layers has the lowest first.
func topFirst(dir string, layers []string) ([]string, error) {
	var out []string
	for _, layer := range slices.Backward(layers) {
		hex, err := parseDigest(layer)
		if err != nil {
			return nil, err
		}
		out = append(out, filepath.Join(dir, "layers", "sha256", hex))
	}
	return out, nil
}

// once keeps only the topmost occurrence of each layer. The resulting tree is the same, because the topmost occurrence
// hides what a lower one did. Overlay refuses the same folder twice (ELOOP), and empty layers often occur twice.
func once(layers []string) ([]string, error) {
	last := map[string]int{}
	for i, l := range layers {
		last[l] = i
	}
	var out []string
	for i, l := range layers {
		if last[l] == i {
			out = append(out, l)
		}
	}
	if len(out) > maxLayers {
		return nil, refuse.Cannotf("", "the image has %d layers and overlay takes at most %d", len(out), maxLayers)
	}
	if len(out) == 0 {
		return nil, refuse.Invalidf("the image has no layers")
	}
	return out, nil
}

// readErr adds what was being read; a refusal in err's chain stays.
func readErr(what string, err error) error { return fmt.Errorf("read %s: %w", what, err) }

// As says which image of an archive to import, and under which name.
type As struct {
	Name string // name in the store; "": the name that the archive gives
	Pick string // which of several images (see findImage); "": the one called Name, or the only one

	Manifest string   // digest of the image's manifest in a folder that holds nothing but blobs; "": the archive has an index
	From     string   // for the record: where the archive came from
	Command  []string // of the tar of a root, which has none of its own
	Foreign  bool     // with Manifest: the image may be for another platform
}
