package oci

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/runner"
	"berth/internal/sys/refuse"
)

// precheck looks up the command before the node exists. The runtimes notice only at create that there is no such command,
// and crun reports it on the node's own standard error, in its own words. precheck skips files that only the runtime will
// make.
//
// It also refuses mounts that do not fit what they are mounted on, which the runtimes tell in words of their own.
//
// It runs in the mount namespace of the plan. The errors are *runner.CommandError and refuse.Invalid.
func (l *Launch) precheck() error {
	spec, err := readSpec(l.Bundle)
	if err != nil || spec.Process == nil || len(spec.Process.Args) == 0 {
		return nil //nolint:nilerr // the runtime will say what is wrong with its configuration
	}
	v := view{root: l.Plan.Root.At, mounts: map[string]string{}}
	for _, m := range spec.Mounts {
		at, err := v.resolve(m.Destination)
		if err != nil { // the runtime makes it
			at = path.Clean(m.Destination)
		}
		if m.Type == "bind" {
			if err := l.fits(v, m.Destination, at, m.Source); err != nil {
				return err
			}
		}
		v.mounts[at] = ""
		if m.Type == "bind" {
			v.mounts[at] = m.Source
		}
	}
	err = lookUp(v.open, nil, spec.Process.Args[0], spec.Process.Env, spec.Process.Cwd)
	if ce, ok := errors.AsType[*runner.CommandError](err); ok {
		return ce
	}
	return nil
}

// fits refuses to bind a folder on a file, or a file on a folder: the kernel takes neither (mount(2), ENOTDIR). at is target without links.
func (l *Launch) fits(v view, target, at, source string) error {
	on, err := v.at(at)
	if err != nil {
		return nil //nolint:nilerr // the runtime makes it
	}
	there, thereErr := os.Lstat(on)
	it, err := os.Stat(source)
	if thereErr != nil || err != nil || there.IsDir() == it.IsDir() {
		return nil //nolint:nilerr // likewise, or what is wrong with it is told when it is mounted
	}
	for _, s := range l.Plan.Stage {
		if s.At == source && s.Source != "" {
			source = s.Source
		}
	}
	kind := func(fi fs.FileInfo) string {
		if fi.IsDir() {
			return "a folder"
		}
		return "a file"
	}
	return refuse.Invalidf("mount %s: %s is %s, and %s of the node is %s: name another target, or another source", target, source, kind(it), target, kind(there))
}

// view is the file system of a node as the runtime will assemble it.
type view struct {
	root   string            // on the host
	mounts map[string]string // path inside, without links → source of the bind; "" for file systems that the runtime makes
}

// errUnseen is the error for files on file systems that the runtime has yet to make.
var errUnseen = errors.New("not there before the runtime makes it")

// open is an opener.
func (v view) open(file string) (*os.File, error) {
	inside, err := v.resolve(file)
	if err != nil {
		return nil, err
	}
	at, err := v.at(inside)
	if err != nil {
		return nil, err
	}
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	return openIn(root, at)
}

// mostLinks is how many symbolic links the kernel follows in one path (MAXSYMLINKS).
const mostLinks = 40

// resolve follows the links of a path inside, as the node would, and returns the path without links.
func (v view) resolve(file string) (string, error) {
	done, todo, links := "/", strings.Split(file, "/"), 0
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		if name == "" || name == "." {
			continue
		}
		if name == ".." {
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, name)
		at, err := v.at(next)
		if err != nil {
			return "", err
		}
		fi, err := os.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) && v.leadsToMount(next) {
			done = next
			continue
		}
		if err != nil {
			return "", err
		}
		if _, mounted := v.mounts[next]; mounted || fi.Mode()&fs.ModeSymlink == 0 {
			done = next
			continue
		}
		if links++; links > mostLinks {
			return "", unix.ELOOP
		}
		target, err := os.Readlink(at)
		if err != nil {
			return "", err
		}
		if path.IsAbs(target) {
			done = "/"
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return done, nil
}

// leadsToMount reports whether the runtime will make this folder for a mount below it.
func (v view) leadsToMount(dir string) bool {
	for at := range v.mounts {
		if strings.HasPrefix(at, dir+"/") {
			return true
		}
	}
	return false
}

// at returns the host's path of a path inside that has no links.
func (v view) at(inside string) (string, error) {
	for dir := inside; dir != "/"; dir = path.Dir(dir) {
		source, mounted := v.mounts[dir]
		if mounted && source == "" {
			return "", errUnseen
		}
		if mounted {
			return path.Join(source, strings.TrimPrefix(inside, dir)), nil
		}
	}
	return path.Join(v.root, inside), nil
}
