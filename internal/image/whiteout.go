package image

import (
	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

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
