package image

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/sys/inroot"
	"berth/internal/sys/refuse"
)

// open opens a folder by its name in the layer, as in a chroot: links that lead out of the layer lead to its top.
func (u *unpacker) open(dir string) (*os.File, error) {
	fd, err := inroot.Open(int(u.top.Fd()), dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), dir), nil
}

// enter opens the folder dir as the parent of the next entries, and makes it if it is missing. It makes the folder that a link on the way
// leads to, too: of var/run, a link to /run, a layer may have no more than the link, and /run is in a layer below.
func (u *unpacker) enter(dir string) error { return u.enterBy(dir, maxLinks) }

// enterBy is enter, by so many links to folders that are missing. The name may be that of a link's target, with "..": the kernel resolves it.
func (u *unpacker) enterBy(dir string, links int) error {
	if u.parent != nil && u.dir == dir {
		return nil
	}
	f, err := u.open(dir)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) { // ENOTDIR: a whiteout is in its place
		if err := u.count(); err != nil {
			return err
		}
		above, base := path.Split(dir)
		if err := u.enterBy(cmp.Or(strings.TrimRight(above, "/"), "."), links); err != nil {
			return err
		}
		if base != "" && base != "." && base != ".." { // of a link's target; it is there once what it is in is
			target, err := u.linked(base)
			if target != "" && links == 0 {
				err = unix.ELOOP
			}
			if err == nil && target != "" {
				err = u.enterBy(target, links-1)
				u.dir = dir
				return err
			}
			if err == nil {
				err = u.makeFolder(dir)
			}
			if err != nil {
				return err
			}
		}
		f, err = u.open(dir)
	}
	if err != nil {
		return fmt.Errorf("open folder %s: %w", dir, err)
	}
	u.forget()
	u.dir, u.parent = dir, f
	return nil
}

// linked returns the name in the layer to which a link in the parent leads, as it stands in the link: "l/.." is above the folder that l leads to.
// It is "" if base is no link, or is not there.
func (u *unpacker) linked(base string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(u.fd(), base, buf)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	target := string(buf[:n])
	if path.IsAbs(target) {
		return target, nil
	}
	var real [2]string // of the layer and the parent, free of links
	for i, f := range []*os.File{u.top, u.parent} {
		if real[i], err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd())); err != nil {
			return "", err
		}
	}
	return strings.TrimPrefix(real[1], real[0]) + "/" + target, nil
}

// makeFolder makes the last part of name in the parent, owned by root, with mode 0755. It leaves an existing folder as
// it is.
func (u *unpacker) makeFolder(name string) error {
	base := path.Base(name)
	if err := u.mkdir(base); !errors.Is(err, unix.EEXIST) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(u.fd(), base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	}
	if !isWhiteout(&st) {
		return refuse.Invalidf("%s is not a folder", name)
	}
	// The layer removes the lower folder and makes a new one: nothing of the lower one may show through.
	if err := unix.Unlinkat(u.fd(), base, 0); err != nil {
		return err
	}
	if err := u.mkdir(base); err != nil {
		return err
	}
	return u.setOpaque(base)
}

// mkdir makes a folder in the parent with mode 0755, whatever the umask.
func (u *unpacker) mkdir(base string) error {
	if err := unix.Mkdirat(u.fd(), base, 0o755); err != nil {
		return err
	}
	return unix.Fchmodat(u.fd(), base, 0o755, 0)
}

// Overlay's marks instead (Documentation/filesystems/overlayfs.rst): a character device 0:0 in place of a removed
// entry, and this attribute on a folder that hides the folders below it.
const opaqueAttr = "trusted.overlay.opaque"

func isWhiteout(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 }

// whiteout hides victim in the layers below.
func (u *unpacker) whiteout(victim string) error {
	if victim == "" || victim == "." || victim == ".." {
		return refuse.Invalidf("it removes nothing that could be there")
	}
	var st unix.Stat_t
	err := unix.Fstatat(u.fd(), victim, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == unix.ENOENT:
		return unix.Mknodat(u.fd(), victim, unix.S_IFCHR, 0)
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT == unix.S_IFDIR: // this layer's own folder stays and hides lower ones
		return u.setOpaque(victim)
	}
	return nil // this layer's own file hides lower ones
}

// setOpaque marks the folder base of the parent as opaque.
func (u *unpacker) setOpaque(base string) error {
	fd, err := unix.Openat(u.fd(), base, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return setAttr(fd, opaqueAttr, "y")
}
