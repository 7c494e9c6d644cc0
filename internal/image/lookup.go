package image

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// tree shows a root's layers merged as overlay would, without mounting them. All symbolic links, absolute ones too, are
// followed within the layers.
type tree struct{ layers []*os.Root } // top first

// openTree opens the layers' folders; lowers has the top layer first.
func openTree(lowers []string) (tree, error) {
	var t tree
	for _, dir := range lowers {
		r, err := os.OpenRoot(dir)
		if err != nil {
			t.close()
			return tree{}, err
		}
		t.layers = append(t.layers, r)
	}
	return t, nil
}

// openImage opens the root of an image below upper, the folder with a node's own writes; "" is none.
func openImage(img Image, upper string) (tree, error) {
	lowers := img.Lowers
	if upper != "" {
		lowers = append([]string{upper}, lowers...)
	}
	t, err := openTree(lowers)
	if err != nil || img.Packed == nil {
		return t, err
	}
	r, err := img.Packed.OpenRoot(context.Background()) // what it waits for takes no time
	if err != nil {
		t.close()
		return tree{}, err
	}
	t.layers = append(t.layers, r)
	return t, nil
}

func (t tree) close() {
	for _, r := range t.layers {
		r.Close()
	}
}

// maxParts is the most path components on the way to one file: each ".." starts again at the top, and an archive must not choose how
// long that takes.
const maxParts = 256

// resolve returns the name (relative to the root, free of symbolic links) and the layer of the file at name. The error
// is fs.ErrNotExist if there is none.
func (t tree) resolve(name string) (string, *os.Root, error) {
	todo := strings.Split(name, "/")
	at, here := ".", t.layers // the folder reached, and the layers that show it
	var in *os.Root           // the layer of a file reached
	for links, parts := 0, 0; len(todo) > 0; parts++ {
		part := todo[0]
		todo = todo[1:]
		if parts > maxParts {
			return "", nil, refuse.Invalidf("%s: it leads through more than %d folders and links", name, maxParts)
		}
		switch {
		case part == "" || part == ".":
			continue
		case in != nil: // name continues below a file
			return "", nil, fs.ErrNotExist
		case part == "..":
			at = path.Dir(at)
			var err error
			if here, err = t.folder(at); err != nil {
				return "", nil, err
			}
			continue
		}
		next := path.Join(at, part)
		layers, info, err := lookup(here, next)
		if err != nil {
			return "", nil, err
		}
		switch {
		case info.IsDir():
			at, here = next, layers
		case info.Mode()&fs.ModeSymlink != 0:
			if links++; links > maxLinks {
				return "", nil, refuse.Invalidf("%s: too many symbolic links", name)
			}
			target, err := layers[0].Readlink(next)
			if err != nil {
				return "", nil, err
			}
			if path.IsAbs(target) {
				at, here = ".", t.layers
			}
			todo = append(strings.Split(target, "/"), todo...)
		default:
			at, in = next, layers[0]
		}
	}
	if in == nil {
		in = here[0]
	}
	return at, in, nil
}

// folder returns the layers that show the folder at name, which is free of symbolic links.
func (t tree) folder(name string) ([]*os.Root, error) {
	here, at := t.layers, "."
	for part := range strings.SplitSeq(name, "/") {
		if part == "." {
			continue
		}
		at = path.Join(at, part)
		var err error
		if here, _, err = lookup(here, at); err != nil {
			return nil, err
		}
	}
	return here, nil
}

// lookup finds name as overlay does; layers are those that show its parent folder. The topmost entry wins. Folders
// merge down to an opaque folder or to an entry that is no folder.
func lookup(layers []*os.Root, name string) ([]*os.Root, fs.FileInfo, error) {
	var dirs []*os.Root
	var first fs.FileInfo
	for _, l := range layers {
		info, err := l.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if !info.IsDir() {
			if len(dirs) > 0 {
				break
			}
			if info.Mode()&fs.ModeCharDevice != 0 { // a whiteout, or a device that is of no use here
				return nil, nil, fs.ErrNotExist
			}
			return []*os.Root{l}, info, nil
		}
		if first == nil {
			first = info
		}
		dirs = append(dirs, l)
		if isOpaque(l, name) {
			break
		}
	}
	if first == nil {
		return nil, nil, fs.ErrNotExist
	}
	return dirs, first, nil
}

func isOpaque(l *os.Root, dir string) bool {
	f, err := l.OpenFile(dir, unix.O_DIRECTORY, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	buf := make([]byte, 2)
	n, err := unix.Fgetxattr(int(f.Fd()), opaqueAttr, buf)
	return err == nil && string(buf[:n]) == "y"
}

// open opens the regular file at name for reading.
func (t tree) open(name string) (*os.File, error) {
	at, in, err := t.resolve(name)
	if err != nil {
		return nil, err
	}
	f, err := in.OpenFile(at, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, fs.ErrNotExist
	}
	return f, nil
}

// InitNamed reports whether a command names an init system: init, linuxrc or systemd.
func InitNamed(command []string) bool {
	return slices.Contains([]string{"init", "linuxrc", "systemd"}, called(command))
}

// called returns the name that a command calls its program by, "" for an empty command.
func called(command []string) string {
	switch {
	case len(command) == 0:
		return ""
	case path.Base(command[0]) == "busybox" && len(command) > 1:
		return command[1]
	}
	return path.Base(command[0])
}

// InitKind returns the init system that a command starts in an image: "systemd", "busybox" or "sysv". It is "" for an
// ordinary command or one that does not exist. It looks into the image's folders, never at the host (except for image
// host, whose programs are the host's).
//
// upper is the folder with the node's own writes, which overlay shows above the image; "" or a missing folder means
// none. Its content counts only if the command is InitNamed. Otherwise a node could replace its own program with a link
// to an init and have an init's rights after the next start.
func InitKind(img Image, upper string, command []string) string {
	if len(command) == 0 {
		return ""
	}
	if img.Plain {
		img, upper = Image{Lowers: []string{"/"}}, ""
	} else if !InitNamed(command) {
		upper = ""
	}
	t, err := openImage(img, upper)
	if errors.Is(err, fs.ErrNotExist) && upper != "" {
		return InitKind(img, "", command)
	}
	if err != nil {
		return ""
	}
	defer t.close()
	program := t.find(command[0], img.Config.Env)
	if program == "" {
		return ""
	}
	real, _, err := t.resolve(program)
	if err != nil {
		return ""
	}
	name := path.Base(program)
	if path.Base(real) == "busybox" {
		name = called(command)
	}
	boots := name == "init" || name == "linuxrc"
	switch {
	case path.Base(real) == "systemd":
		return "systemd"
	case boots && path.Base(real) == "busybox":
		return "busybox"
	case boots && strings.HasSuffix(path.Dir(real), "sbin") && t.isELF(real):
		return "sysv" // an ELF file, not a container's start script called /init
	}
	return ""
}

// find returns the path of a program: unchanged if it has a slash, else searched in PATH; "" if not found.
func (t tree) find(program string, env []string) string {
	if strings.Contains(program, "/") {
		return program
	}
	dirs := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	if i := slices.IndexFunc(env, func(e string) bool { return strings.HasPrefix(e, "PATH=") }); i >= 0 {
		dirs = env[i][len("PATH="):]
	}
	for dir := range strings.SplitSeq(dirs, ":") {
		if _, _, err := t.resolve(path.Join(dir, program)); err == nil {
			return path.Join(dir, program)
		}
	}
	return ""
}

func (t tree) isELF(name string) bool {
	f, err := t.open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	magic := make([]byte, 4)
	_, err = io.ReadFull(f, magic)
	return err == nil && string(magic) == "\x7fELF"
}
