package treetar

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	xattrRecord = "SCHILY.xattr."
	// Capability is the attribute of a file's capabilities.
	Capability = "security.capability"
)

// attrs adds the extended attributes of an open file to its header: those of users, its capabilities, its access control lists.
// All others belong to the host that made them (security labels) or to overlay.
func (p *packer) attrs(fd int, h *tar.Header) {
	for _, name := range attrNames(fd) {
		switch {
		case name == Capability && p.from.Harmless:
			p.tally.Caps++
		case name == Capability || userAttr(name):
			if v, err := attr(fd, name); err == nil {
				h.PAXRecords[xattrRecord+escapeAttr(name)] = string(v)
			}
		}
	}
	for record, name := range map[string]string{accessRecord: AccessList, defaultRecord: DefaultList} {
		v, err := attr(fd, name)
		if err != nil {
			continue
		}
		if text, err := aclText(v); err == nil && text != "" {
			h.PAXRecords[record] = text
		}
	}
}

// Attrs returns the extended attributes of an entry that a file may get: those of users, and its capabilities. All others are dropped:
// security labels belong to the host that made them, and overlay's (trusted.overlay.*, user.overlay.*) would redirect one path to
// another.
func Attrs(h *tar.Header) map[string]string {
	all := map[string]string{}
	for record, value := range h.PAXRecords {
		if name, is := strings.CutPrefix(record, xattrRecord); is {
			if name = unescapeAttr(name); name == Capability || userAttr(name) {
				all[name] = value
			}
		}
	}
	return all
}

// userAttr reports whether an attribute is a user's own. Overlay's (user.overlay.*) would redirect one path to another.
func userAttr(name string) bool {
	return strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.")
}

// A record's name ends at "=", so GNU tar writes one in an attribute's name as %3D.
func escapeAttr(name string) string {
	return strings.NewReplacer("%", "%25", "=", "%3D").Replace(name)
}

func unescapeAttr(name string) string {
	return strings.NewReplacer("%25", "%", "%3D", "=").Replace(name)
}

func attrNames(fd int) []string {
	for size := 1024; ; size *= 2 {
		buf := make([]byte, size)
		n, err := unix.Flistxattr(fd, buf)
		if errors.Is(err, unix.ERANGE) {
			continue
		}
		if err != nil || n == 0 {
			return nil
		}
		var all []string
		for name := range bytes.SplitSeq(bytes.TrimSuffix(buf[:n], []byte{0}), []byte{0}) {
			all = append(all, string(name))
		}
		return all
	}
}

func attr(fd int, name string) ([]byte, error) {
	for size := 256; ; size *= 4 {
		buf := make([]byte, size)
		n, err := unix.Fgetxattr(fd, name, buf)
		if errors.Is(err, unix.ERANGE) && size < 1<<20 {
			continue
		}
		return buf[:max(n, 0)], err
	}
}

// setAttrs gives an open file its owner, mode, attributes and times, in this order: a change of owner clears set-id bits and
// capabilities.
func (u *unpacker) setAttrs(fd int, h *tar.Header) error {
	if err := u.chown(fd, h); err != nil {
		return err
	}
	if err := u.dropLists(fd); err != nil {
		return err
	}
	if err := u.all.chmod(fd, u.mode(h)); err != nil {
		return err
	}
	for name, value := range Attrs(h) {
		if name == Capability && (u.to.Harmless || !u.to.Owners) {
			u.tally.Caps++
			continue
		}
		if err := u.setAttr(fd, name, []byte(value)); err != nil {
			return err
		}
	}
	if err := u.setLists(fd, h); err != nil {
		return err
	}
	return u.setTime(fd, h.ModTime)
}

// dropLists takes from an open file the access control lists that it has from the folder in which it was made, where those of the stream are
// kept: one without a list shall have none, and the mode would give the users of the folder's list what it gives the group.
func (u *unpacker) dropLists(fd int) error {
	if !u.to.Owners {
		return nil
	}
	for _, name := range []string{AccessList, DefaultList} {
		err := unix.Fremovexattr(fd, name)
		if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EACCES) {
			return fmt.Errorf("remove the access control list of the folder: %w", err)
		}
	}
	return nil
}

// setLists gives an open file its access control lists, which name users as the owner does. The kernel gives it the bits of the mode that
// belong to the list. A list that cannot be set is counted: the file then keeps a mode that is right without it.
func (u *unpacker) setLists(fd int, h *tar.Header) error {
	if !u.to.Owners {
		return nil
	}
	own, inherited := Lists(h)
	for name, list := range map[string]*ACL{AccessList: own, DefaultList: inherited} {
		if list == nil {
			continue
		}
		value, ok := list.Value()
		if !ok {
			u.tally.Attrs++
			continue
		}
		if err := u.setAttr(fd, name, value); err != nil {
			return err
		}
	}
	return nil
}

// setAttr sets an attribute. One that the file system does not take is counted.
func (u *unpacker) setAttr(fd int, name string, value []byte) error {
	err := unix.Fsetxattr(fd, name, value, 0)
	for _, e := range []unix.Errno{unix.EOPNOTSUPP, unix.EINVAL, unix.ERANGE, unix.E2BIG, unix.EPERM, unix.ENOSPC, unix.EDQUOT} {
		if errors.Is(err, e) {
			u.tally.Attrs++
			return nil
		}
	}
	return err
}

// mode returns the mode of an entry, without what this copy leaves out: a set-id bit, which counts for the owner that the file had, and
// what only an access control list would allow (setLists sets it later).
func (u *unpacker) mode(h *tar.Header) uint32 {
	own, _ := Lists(h)
	mode := own.Narrow(uint32(h.Mode) & 0o7777)
	if h.Typeflag != tar.TypeDir && (u.to.Harmless || !u.to.Owners) && mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
		mode &^= unix.S_ISUID | unix.S_ISGID
		u.tally.SetID++
	}
	return mode
}

// setTime sets the time of the last change of the file behind a descriptor.
func (u *unpacker) setTime(fd int, t time.Time) error {
	ts := unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
	return unix.UtimesNanoAt(fd, "", []unix.Timespec{{Nsec: unix.UTIME_OMIT}, ts}, unix.AT_EMPTY_PATH)
}
