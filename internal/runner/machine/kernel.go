package machine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/sys/file"
	"berth/internal/sys/fork"
	"berth/internal/sys/refuse"
)

// guestModules are the drivers and file systems that a guest needs, as far as its kernel has them as modules. crc32c comes by a
// name that no list of dependencies has.
func guestModules() []string {
	return []string{"virtio_mmio", "virtio_blk", "virtio_console", "virtio_net", "virtio_rng", "virtio_balloon", "pvpanic_mmio", "crc32c_generic", "erofs", "squashfs", "overlay"}
}

// The most bytes of a kernel, and of one module or the list of them. A kernel of a distribution has 10 MiB, a module at most some.
const (
	mostKernel = 256 << 20
	mostModule = 64 << 20
)

// kernel is a guest's kernel and its modules: files that only root can change, for root reads them into the guest.
type kernel struct {
	*os.File
	release string
	modules string // the folder with its modules, "" if it has none: it may have all built in
}

// KernelRelease returns the release of the kernel in a file, as uname prints it. A file that is no kernel of x86, or that others than
// root can change, is refused.
func KernelRelease(path string) (string, error) {
	k, err := openKernel(path)
	if err != nil {
		return "", err
	}
	return k.release, k.Close()
}

// openKernel opens a kernel and finds its modules.
func openKernel(path string) (k *kernel, err error) {
	at, err := rootOnly(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse.NotFoundf("there is no kernel %s", path)
	}
	if err != nil {
		return nil, err
	}
	f, err := openRegular(func(flags int) (*os.File, error) { return os.OpenFile(at, flags, 0) }, mostKernel)
	if err != nil {
		return nil, fmt.Errorf("read the machine's kernel: %w", err)
	}
	k = &kernel{File: f}
	if k.release, err = releaseOf(f, path); err == nil {
		k.modules, err = modulesOf(at, k.release)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return k, nil
}

// rootOnly resolves a path, and refuses one that others than root can change.
func rootOnly(path string) (string, error) {
	at, err := file.RootOnly(path)
	if e, open := errors.AsType[*file.NotRootOnly](err); open {
		return "", refuse.Cannotf("give it to root: chown root "+e.At+"; chmod go-w "+e.At, "a machine does not boot from %s: others than root can change %s", path, e.At)
	}
	return at, err
}

// openRegular opens a file by a function, without waiting, if it is a plain file of root's with at most so many bytes.
func openRegular(open func(flags int) (*os.File, error), most int64) (*os.File, error) {
	f, err := open(os.O_RDONLY | unix.O_NONBLOCK | unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(int(f.Fd()), &st); err != nil {
		err = &fs.PathError{Op: "stat", Path: f.Name(), Err: err}
	} else if st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = refuse.Invalidf("%s is not a file", f.Name())
	} else if st.Uid != 0 || st.Mode&0o022 != 0 {
		err = &file.NotRootOnly{At: f.Name()}
	} else if st.Size > most {
		err = refuse.Invalidf("%s has %d bytes; at most %d are read", f.Name(), st.Size, most)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// releaseOf reads the release out of a kernel (Documentation/arch/x86/boot.rst of the kernel: HdrS at 0x202, the place of the
// version at 0x20e, less 0x200).
func releaseOf(f io.ReaderAt, path string) (string, error) {
	head := make([]byte, 0x210)
	if _, err := f.ReadAt(head, 0); err != nil || string(head[0x202:0x206]) != "HdrS" {
		return "", refuse.Invalidf("kernel %s: it is no Linux kernel for x86 (bzImage), as /boot/vmlinuz-VERSION of a distribution is", path)
	}
	text := make([]byte, 256)
	n, err := f.ReadAt(text, int64(binary.LittleEndian.Uint16(head[0x20e:]))+0x200)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read the machine's kernel: %w", err)
	}
	line, _, _ := strings.Cut(string(text[:n]), "\x00")
	release, _, _ := strings.Cut(line, " ")
	if release == "" || strings.ContainsAny(release, "/\\") || strings.HasPrefix(release, ".") {
		return "", refuse.Invalidf("kernel %s: it does not say its version", path)
	}
	return release, nil
}

// modulesOf returns the folder with the modules of a kernel: lib/modules/RELEASE or usr/lib/modules/RELEASE, beside the kernel's
// file or a folder above it. "" if there is none.
func modulesOf(kernel, release string) (string, error) {
	at := filepath.Dir(kernel)
	for _, top := range []string{at, filepath.Dir(at)} {
		for _, lib := range []string{"lib/modules", "usr/lib/modules"} {
			dir, err := rootOnly(filepath.Join(top, lib, release, dependencies))
			if err == nil {
				return filepath.Dir(dir), nil
			}
			if !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
		}
	}
	return "", nil
}

// dependencies is the list of modules in their folder (depmod(8)).
const dependencies = "modules.dep"

// addModules adds modules, what they need before them, and their order.
func (k *kernel) addModules(c *archive, modules []string) error {
	if k.modules == "" {
		return nil
	}
	root, err := os.OpenRoot(k.modules)
	if err != nil {
		return fmt.Errorf("read the modules of the machine's kernel: %w", err)
	}
	defer root.Close()
	list, err := readBelow(root, dependencies)
	if err != nil {
		return err
	}
	needs, files := readDependencies(string(list))
	var order []string
	for _, name := range modules {
		file, ok := files[name]
		if !ok {
			continue // built in, or the kernel has none: the guest says what it lacks
		}
		for _, f := range slices.Backward(append([]string{file}, needs[file]...)) {
			if !slices.Contains(order, f) {
				order = append(order, f)
			}
		}
	}
	var names strings.Builder
	for _, f := range order {
		text, err := readBelow(root, f)
		if err != nil {
			return err
		}
		name := moduleName(f) + ".ko"
		c.add("modules/"+name, 0o100644, text)
		fmt.Fprintln(&names, name)
	}
	c.add("modules/order", 0o100644, []byte(names.String()))
	return nil
}

// readDependencies reads modules.dep: a line for each module with those that it needs, the nearest first. files maps the names of
// modules, with '_' for '-', to their files.
func readDependencies(list string) (needs map[string][]string, files map[string]string) {
	needs, files = map[string][]string{}, map[string]string{}
	for line := range strings.SplitSeq(list, "\n") {
		file, rest, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		files[moduleName(file)] = file
		needs[file] = strings.Fields(rest)
	}
	return needs, files
}

// moduleName is the name of the module in a file, as the kernel has it.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".")
	return strings.ReplaceAll(name, "-", "_")
}

// unpackers are the programs that unpack modules, by the end of the module's name, and the packages that have them.
var unpackers = map[string]struct{ program, from string }{".xz": {"xz", "xz-utils"}, ".zst": {"zstd", "zstd"}, ".gz": {"gzip", "gzip"}}

// readBelow reads a file below a folder; no link leads out of it. A compressed module is unpacked.
func readBelow(root *os.Root, name string) ([]byte, error) {
	f, err := openRegular(func(flags int) (*os.File, error) { return root.OpenFile(name, flags, 0) }, mostModule)
	if err != nil {
		return nil, fmt.Errorf("read the modules of the machine's kernel: %w", err)
	}
	defer f.Close()
	by, compressed := unpackers[filepath.Ext(name)]
	if !compressed {
		return io.ReadAll(f)
	}
	out := &bounded{most: mostModule}
	cmd := exec.Command(by.program, "-dc")
	cmd.Stdin, cmd.Stdout = f, out
	if err := fork.Run(cmd); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return nil, refuse.Cannotf("apt-get install "+by.from, "the modules of the machine's kernel are compressed by %s, which is not installed", by.program)
		}
		return nil, fmt.Errorf("unpack module %s with %s: %w", f.Name(), by.program, err)
	}
	return out.got.Bytes(), nil
}

// bounded keeps what is written, up to a bound.
type bounded struct {
	got  bytes.Buffer // not embedded: its ReadFrom knows no bound
	most int
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.got.Len()+len(p) > b.most {
		return 0, fmt.Errorf("more than %d bytes", b.most)
	}
	return b.got.Write(p)
}
