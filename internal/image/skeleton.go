package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/purge"
	"berth/internal/sys/refuse"
)

// HostRoot describes the host's root as far as image host needs it.
type HostRoot struct {
	Links map[string]string `json:"links,omitempty"` // merged-usr links: "bin" → "usr/bin"
	Dirs  []string          `json:"dirs,omitempty"`  // folders of programs and libraries that are not merged into /usr
	NoEtc bool              `json:"no_etc,omitempty"`
	Files []string          `json:"files,omitempty"` // hosts, hostname and resolv.conf in /etc, if they are regular files
}

// Bind is a folder of the host that is visible in a node of image host.
//
// It is read-only, not recursive (mounts below it stay out), and not idmapped: its files belong to ids that the node
// does not have. So the node's root reads only what "others" may read, like any unprivileged user, and set-user-id bits
// and file capabilities of the host's programs have no effect in the node.
type Bind struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only"`
}

// ReadHostRoot describes the root at path root, which is "/" except in tests.
func ReadHostRoot(root string) (HostRoot, error) {
	r, err := os.OpenRoot(root)
	if err != nil {
		return HostRoot{}, err
	}
	defer r.Close()
	h := HostRoot{Links: map[string]string{}}
	for _, name := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32", "libo32"} {
		info, err := r.Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return HostRoot{}, err
		case info.IsDir():
			h.Dirs = append(h.Dirs, name)
		case info.Mode()&fs.ModeSymlink != 0:
			if h.Links[name], err = r.Readlink(name); err != nil {
				return HostRoot{}, err
			}
		}
	}
	if info, err := r.Stat("etc"); err != nil || !info.IsDir() {
		h.NoEtc = true
	}
	for _, name := range []string{"hosts", "hostname", "resolv.conf"} {
		if info, err := r.Lstat("etc/" + name); err == nil && info.Mode().IsRegular() {
			h.Files = append(h.Files, name)
		}
	}
	return h, nil
}

// Binds returns the folders that a node of image host sees: the host's programs and libraries, and /etc.
//
// Limits of this protection (docs: SECURITY): the node can read every file that everybody may read, also keys left so
// in /etc or /usr/local. It can connect to a Unix socket that everybody may write to, because "read-only" is about
// files; the same holds for a FIFO. A file of /etc that is a link into /run or /var, such as /etc/resolv.conf, dangles,
// because the node's own /run and /var are empty. If hosts, hostname and resolv.conf are regular files, the node's own
// files cover them.
func (h HostRoot) Binds() []Bind {
	dirs := append([]string{"usr"}, h.Dirs...)
	if !h.NoEtc {
		dirs = append(dirs, "etc")
	}
	var all []Bind
	for _, d := range dirs {
		all = append(all, Bind{Source: "/" + d, Target: "/" + d, ReadOnly: true})
	}
	return all
}

// CheckHost refuses image host where it would be unsafe: without a user namespace the node's root is the host's root
// and reads files that only root may. It also refuses image host without a command.
func CheckHost(n *vnode.Node) error {
	if n.Image.Kind != vnode.HostImage {
		return nil
	}
	if !n.UserNS() {
		return &refuse.Error{
			Kind: refuse.Invalid, What: "image host with user_namespace: false would show the node all of the host's secrets in /etc and /usr",
			Remedy: "leave user_namespace out, or use another image",
		}
	}
	if len(n.Command) == 0 {
		return refuse.Invalidf("image host has no command of its own: the spec must give one")
	}
	return nil
}

// Skeleton is the step image.skeleton: the bare root folder of a node of image host, with the host's merged-usr links
// and the mount points for the binds and the runtime's file systems. Undo removes it with everything that the node
// wrote there.
type Skeleton struct {
	Path  string            `json:"path"`  // in the node's delta; its parent exists
	Owner uint32            `json:"owner"` // owner of all entries: the node's root id if Path is the root itself, 0 if it is an idmapped layer
	Links map[string]string `json:"links,omitempty"`
	Dirs  []string          `json:"dirs,omitempty"` // mount points at the top
}

// Skeleton returns the step that makes a root folder at path.
func (h HostRoot) Skeleton(path string, owner uint32) *Skeleton {
	s := &Skeleton{Path: path, Owner: owner, Links: h.Links}
	for _, b := range h.Binds() {
		s.Dirs = append(s.Dirs, b.Target[1:])
	}
	return s
}

// entry is a folder of the skeleton, or a link if target is not empty.
type entry struct {
	name   string
	mode   os.FileMode
	target string
}

// entries returns the entries in the order in which they are made.
func (s *Skeleton) entries() []entry {
	all := []entry{
		{name: "dev"},
		{name: "proc"},
		{name: "sys"},
		{name: "run"},
		{name: "home"},
		{name: "opt"},
		{name: "srv"},
		{name: "mnt"},
		{name: "media"},
		{name: "root", mode: 0o700},
		{name: "tmp", mode: 0o777 | fs.ModeSticky},
		{name: "var"},
		{name: "var/cache"},
		{name: "var/lib"},
		{name: "var/log"},
		{name: "var/spool"},
		{name: "var/tmp", mode: 0o777 | fs.ModeSticky},
		{name: "var/run", target: "../run"},
		{name: "var/lock", target: "../run/lock"},
	}
	for _, d := range s.Dirs {
		all = append(all, entry{name: d})
	}
	links := make([]entry, 0, len(s.Links))
	for name, target := range s.Links {
		links = append(links, entry{name: name, target: target})
	}
	slices.SortFunc(links, func(a, b entry) int { return cmp.Compare(a.name, b.name) })
	return append(all, links...)
}

// Kind returns image.skeleton.
func (s *Skeleton) Kind() string { return "image.skeleton" }

// Own gives the root folder to the root user of a node with these ids, unless it is an overlay layer, which is idmapped.
func (s *Skeleton) Own(base, _ uint32) {
	if filepath.Base(filepath.Dir(s.Path)) == "delta" {
		s.Owner = base
	}
}

func (s *Skeleton) String() string {
	return fmt.Sprintf("%s, an empty root for the host's programs", s.Path)
}

// Do makes the tree. Errors: refuse.Busy if the root exists.
func (s *Skeleton) Do(context.Context) error {
	err := makeDir(s.Path, 0o755, s.Owner)
	if errors.Is(err, fs.ErrExist) {
		return refuse.Busyf("there is a root in %s already", s.Path)
	}
	if err != nil {
		return fmt.Errorf("make root: %w", err)
	}
	for _, e := range s.entries() {
		path := filepath.Join(s.Path, e.name)
		if e.target != "" {
			err = errors.Join(os.Symlink(e.target, path), os.Lchown(path, int(s.Owner), int(s.Owner)))
		} else {
			err = makeDir(path, cmp.Or(e.mode, 0o755), s.Owner)
		}
		if err != nil {
			return fmt.Errorf("make root: %w", err)
		}
		if e.name == "var" {
			fault.Point("root half made")
		}
	}
	return nil
}

// Verify checks that all entries exist.
func (s *Skeleton) Verify(context.Context) error {
	for _, e := range s.entries() {
		if _, err := os.Lstat(filepath.Join(s.Path, e.name)); err != nil {
			return fmt.Errorf("verify root: %w", err)
		}
	}
	return nil
}

// Undo removes the tree. It returns nil if the tree does not exist.
func (s *Skeleton) Undo(ctx context.Context) error {
	if !filepath.IsAbs(s.Path) || filepath.Dir(s.Path) == "/" {
		return fmt.Errorf("remove root: %q is no root's path", s.Path)
	}
	if err := purge.Tree(ctx, s.Path); err != nil {
		return fmt.Errorf("remove root: %w", err)
	}
	return nil
}
