package treetar

import (
	"archive/tar"
	"bytes"
	"errors"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	xattrRecord = "SCHILY.xattr."
	capability  = "security.capability"
)

// aclRecords maps the records of access control lists to the attributes in which the kernel shows them.
func aclRecords() map[string]string {
	return map[string]string{
		"SCHILY.acl.access": "system.posix_acl_access", "SCHILY.acl.default": "system.posix_acl_default",
	}
}

// attrs adds the extended attributes of an open file to its header: those of users, its capabilities, its access control lists.
// All others belong to the host that made them (security labels) or to overlay.
func (p *packer) attrs(fd int, h *tar.Header) {
	for _, name := range attrNames(fd) {
		switch {
		case name == capability && p.from.Harmless:
			p.tally.Caps++
		case name == capability || userAttr(name):
			if v, err := attr(fd, name); err == nil {
				h.PAXRecords[xattrRecord+escapeAttr(name)] = string(v)
			}
		}
	}
	for record, name := range aclRecords() {
		v, err := attr(fd, name)
		if err != nil {
			continue
		}
		if text, err := aclText(v); err == nil && text != "" {
			h.PAXRecords[record] = text
		}
	}
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
	if err := u.all.chmod(fd, u.mode(h)); err != nil {
		return err
	}
	for record, value := range h.PAXRecords {
		name, isAttr := strings.CutPrefix(record, xattrRecord)
		name = unescapeAttr(name)
		switch {
		case isAttr && name == capability:
			if u.to.Harmless || !u.to.Owners {
				u.tally.Caps++
				continue
			}
		case isAttr && userAttr(name):
		default:
			continue
		}
		if err := u.setAttr(fd, name, []byte(value)); err != nil {
			return err
		}
	}
	if u.to.Owners { // their entries name users, as the owner does
		for record, name := range aclRecords() {
			text, has := h.PAXRecords[record]
			if !has {
				continue
			}
			value, err := aclValue(text)
			if err != nil { // names of users: GNU tar's, of another host
				u.tally.Attrs++
				continue
			}
			if err := u.setAttr(fd, name, value); err != nil {
				return err
			}
		}
	}
	return u.setTime(fd, h.ModTime)
}

// setAttr sets an attribute. One that the file system does not take is counted.
func (u *unpacker) setAttr(fd int, name string, value []byte) error {
	err := unix.Fsetxattr(fd, name, value, 0)
	for _, e := range []unix.Errno{unix.EOPNOTSUPP, unix.EINVAL, unix.ERANGE, unix.E2BIG, unix.EPERM, unix.ENOSPC} {
		if errors.Is(err, e) {
			u.tally.Attrs++
			return nil
		}
	}
	return err
}

// mode returns the mode of an entry, without what this copy leaves out. A set-id bit counts for the owner that the file had.
func (u *unpacker) mode(h *tar.Header) uint32 {
	mode := uint32(h.Mode) & 0o7777
	if h.Typeflag != tar.TypeDir && (u.to.Harmless || !u.to.Owners) && mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
		mode &^= unix.S_ISUID | unix.S_ISGID
		u.tally.SetID++
	}
	return mode
}

// setTime sets the time of the last change of what is behind a descriptor.
func (u *unpacker) setTime(fd int, t time.Time) error {
	ts := unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
	return unix.UtimesNanoAt(fd, "", []unix.Timespec{{Nsec: unix.UTIME_OMIT}, ts}, unix.AT_EMPTY_PATH)
}
