// Package mounts makes the file systems of one node visible in a private mount namespace: the root as an overlay over
// idmapped layers, sources staged for the OCI runtime to bind, and the node's device nodes.
//
// A Plan is data. Enter carries it out on the current OS thread. That thread can then only start the runtime, which
// inherits the namespace. The mounts are never visible in the host's mount namespace, and nothing needs to be unmounted
// when the process is killed: the mounts live as long as the last process in the namespace.
package mounts

import (
	"fmt"
	"path/filepath"
	"strings"

	"berth/internal/spec/vnode"
	"berth/internal/storage/packed"
	"berth/internal/sys/refuse"
)

// Plan describes the content of a node's private mount namespace.
type Plan struct {
	Dir   string   `json:"dir"`             // an existing folder; a small tmpfs is mounted on it, and everything staged is below it
	Root  Root     `json:"root"`            // the node's /
	Stage []Stage  `json:"stage,omitempty"` // the sources that the runtime binds into the node
	Files []File   `json:"files,omitempty"` // files that cover files of the root
	Hide  []string `json:"hide,omitempty"`  // mounts of the host that the runtime must not see; they may be missing
	IDs   IDs      `json:"ids,omitzero"`    // the node's ids
}

// Root is the node's root: an overlay of Lower and an upper folder, or a Plain folder.
type Root struct {
	At    string   `json:"at"`              // where it is mounted: an existing folder, or below Plan.Dir
	Lower []string `json:"lower,omitempty"` // read-only layers, folders of the host, top first; idmapped if there are IDs
	// Packed is the only layer, instead of Lower: a file that is mounted. It is idmapped too.
	Packed *packed.File `json:"packed,omitempty"`
	Upper  string       `json:"upper,omitempty"`  // where writes go, on disk; owned by the node's root; not idmapped (overlay cannot)
	Work   string       `json:"work,omitempty"`   // overlay's own folder, beside Upper in the same folder
	Memory bool         `json:"memory,omitempty"` // writes go to a tmpfs instead of Upper and Work
	Size   vnode.Bytes  `json:"size,omitempty"`   // most bytes in that tmpfs; 0: the kernel's default, half of the memory
	// Volatile: writes to Upper are never synced (overlay's option volatile, kernel 5.10). fsync does nothing, and
	// unmounting does not write back the whole file system of Upper, as it does for other overlays (ovl_sync_fs). It is
	// for a delta that ends with its node.
	Volatile bool `json:"volatile,omitempty"`
	// NoSUID: set-user-id bits and file capabilities have no effect. Under no_new_privs they have none anyway, but the
	// kernel refuses to run a program whose file capability is not in the bounding set (EPERM); Debian's ping has one.
	// On a nosuid mount the kernel ignores file capabilities (mnt_may_suid in security/commoncap.c).
	NoSUID bool   `json:"nosuid,omitempty"`
	Plain  string `json:"plain,omitempty"` // instead of an overlay: this folder is the root, not idmapped
}

// Stage is one thing that the runtime binds into the node: a folder or file of the host, or a device node.
//
// A bind mount keeps the flags of its source: nosuid and nodev for a Source (and ro if ReadOnly), nosuid and noexec for
// a Device. So a plain bind is enough. A runtime that sets any flag must set these too (and the source's atime flag),
// because the kernel locks them when a user namespace gets the mount.
type Stage struct {
	At        string      `json:"at"`                  // below Plan.Dir; the file or folder to mount on is made
	Source    string      `json:"source,omitempty"`    // absolute path on the host; refused if a part of it is a symbolic link
	Idmap     bool        `json:"idmap,omitempty"`     // the node's ids appear as the same ids on the source's file system
	ReadOnly  bool        `json:"readOnly,omitempty"`  // also everything mounted beneath
	Recursive bool        `json:"recursive,omitempty"` // with the mounts beneath it now; later ones do not appear
	Device    *DeviceNode `json:"device,omitempty"`    // instead of Source
	Huge      *HugePages  `json:"huge,omitempty"`      // instead of both
	Volume    *Volume     `json:"volume,omitempty"`    // instead of all these
	Target    string      `json:"target,omitempty"`    // its path in the node, for messages
}

// DeviceNode is a device node, owned by the node's root.
type DeviceNode struct {
	Type  string `json:"type"` // "b" (block) or "c" (character)
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
	Mode  uint32 `json:"mode,omitempty"` // permission bits; 0 means 0660
}

// MaxLayers is the most lower layers of an overlay (OVL_MAX_STACK in the kernel's fs/overlayfs).
const MaxLayers = 500

// Validate refuses a plan that Enter could not carry out. It does not look at the host.
func (p *Plan) Validate() error {
	if !clean(p.Dir) {
		return refuse.Invalidf("staging folder %q is not an absolute path", p.Dir)
	}
	if err := p.Root.validate(); err != nil {
		return err
	}
	seen := map[string]bool{p.Root.At: true}
	for _, s := range p.Stage {
		switch {
		case !below(s.At, p.Dir):
			return refuse.Invalidf("stage %q is not below %s", s.At, p.Dir)
		case seen[s.At]:
			return refuse.Invalidf("two things are staged at %s", s.At)
		case kinds(s.Source != "", s.Device != nil, s.Huge != nil, s.Volume != nil) != 1:
			return refuse.Invalidf("stage %s needs a source, a device, huge pages or a volume, one of them", s.At)
		case s.Source != "" && !clean(s.Source):
			return refuse.Invalidf("source %q of stage %s is not an absolute path", s.Source, s.At)
		case s.Device != nil && s.Device.Type != "b" && s.Device.Type != "c":
			return refuse.Invalidf("device type %q of stage %s is neither b nor c", s.Device.Type, s.At)
		case s.Idmap && p.IDs.None():
			return refuse.Invalidf("stage %s asks for idmapping, but the node has no id range", s.At)
		}
		seen[s.At] = true
	}
	for _, f := range p.Files {
		if f.Root != "" && f.Root != p.Root.At || filepath.IsAbs(f.Path) || filepath.Clean(f.Path) != f.Path || strings.HasPrefix(f.Path, ".") {
			return refuse.Invalidf("file %q of %s is not in the node's root", f.Path, f.Root)
		}
	}
	return nil
}

// kinds counts the true values.
func kinds(there ...bool) (n int) {
	for _, t := range there {
		if t {
			n++
		}
	}
	return n
}

func (r *Root) validate() error {
	if !clean(r.At) {
		return refuse.Invalidf("root %q is not an absolute path", r.At)
	}
	if r.Plain != "" {
		if r.layerCount() > 0 || r.Upper != "" || r.Work != "" || r.Memory {
			return refuse.Invalidf("root %s is either a plain folder or an overlay", r.At)
		}
		return nil
	}
	switch {
	case r.layerCount() == 0:
		return refuse.Invalidf("root %s has no layers", r.At)
	case r.Packed != nil && len(r.Lower) > 0:
		return refuse.Invalidf("the layers of root %s are either folders or one file", r.At)
	case len(r.Lower) > MaxLayers:
		return refuse.Cannotf("merge layers of the image", "the image has %d layers, the kernel's overlay takes at most %d", len(r.Lower), MaxLayers)
	case r.Memory && r.Upper+r.Work != "":
		return refuse.Invalidf("the writes to root %s go either to memory or to disk", r.At)
	case !r.Memory && (!clean(r.Upper) || !clean(r.Work) || r.Upper == r.Work || filepath.Dir(r.Upper) != filepath.Dir(r.Work)):
		return refuse.Invalidf("upper %q and work %q of root %s must be two folders in one folder", r.Upper, r.Work, r.At)
	}
	return nil
}

func (r *Root) layerCount() int {
	if r.Packed != nil {
		return len(r.Lower) + 1
	}
	return len(r.Lower)
}

// Layers returns the identity of the layers: their folders, or the digest of the file.
func (r *Root) Layers() []string {
	if r.Packed != nil {
		return []string{r.Packed.Digest}
	}
	return r.Lower
}

// clean reports whether a path is absolute and has no dots, doubled or trailing slashes.
func clean(path string) bool { return filepath.IsAbs(path) && filepath.Clean(path) == path }

func below(path, dir string) bool { return clean(path) && strings.HasPrefix(path, dir+"/") }

// String describes the mounts of the plan: "overlay of 2 layers; /srv/data at /data (idmapped, read-only); device c 10:229".
func (p *Plan) String() string {
	parts := []string{p.Root.describe()}
	for _, s := range p.Stage {
		parts = append(parts, s.describe())
	}
	return strings.Join(parts, "; ")
}

func (r *Root) describe() string {
	if r.Plain != "" {
		return "root " + r.Plain
	}
	text := fmt.Sprintf("root an overlay of %d layers", len(r.Lower))
	if r.Packed != nil {
		text = fmt.Sprintf("root an overlay of %s %s", r.Packed.Kind, r.Packed.Path)
	} else if len(r.Lower) == 1 {
		text = "root an overlay of " + r.Lower[0]
	}
	switch {
	case r.Memory && r.Size > 0:
		return fmt.Sprintf("%s, writes to %s of memory", text, r.Size)
	case r.Memory:
		return text + ", writes to memory"
	case r.Volatile:
		return text + ", writes not synced"
	}
	return text
}

func (s *Stage) describe() string {
	if s.Device != nil {
		return fmt.Sprintf("device %s %d:%d", s.Device.Type, s.Device.Major, s.Device.Minor)
	}
	if s.Huge != nil {
		return fmt.Sprintf("%s of huge pages of %s", s.Huge.Size, s.Huge.Page)
	}
	if s.Volume != nil {
		return fmt.Sprintf("%s (%s) at %s", s.Volume.Source, s.Volume.FSType, s.Target)
	}
	var how []string
	if s.Idmap {
		how = append(how, "idmapped")
	}
	if s.ReadOnly {
		how = append(how, "read-only")
	}
	what := s.Source
	if s.Target != "" && s.Target != s.Source {
		what += " at " + s.Target
	}
	if len(how) == 0 {
		return what
	}
	return what + " (" + strings.Join(how, ", ") + ")"
}
