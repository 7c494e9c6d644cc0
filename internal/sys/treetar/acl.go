package treetar

import (
	"archive/tar"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"
)

// The kernel shows an access control list as an attribute: a version, then entries of tag, permissions and id, little endian
// (include/uapi/linux/posix_acl_xattr.h). It translates the ids to those of the user namespace of the process that reads it. In
// a stream the list is text, as star and GNU tar write it: "user::rw-,user:1000:r--,group::r--,mask::r--,other::---".

const (
	aclVersion = 2
	aclNoID    = 0xffffffff
)

// The attributes in which the kernel shows the lists: a file's own, and the default list of a folder, which new files in it
// inherit.
const (
	AccessList  = "system.posix_acl_access"
	DefaultList = "system.posix_acl_default"
)

const (
	accessRecord  = "SCHILY.acl.access"
	defaultRecord = "SCHILY.acl.default"
)

// aclTags returns the names of the tags, and whether an entry has an id.
func aclTags() map[uint16]struct {
	name string
	id   bool
} {
	return map[uint16]struct {
		name string
		id   bool
	}{0x01: {"user", false}, 0x02: {"user", true}, 0x04: {"group", false}, 0x08: {"group", true}, 0x10: {"mask", false}, 0x20: {"other", false}}
}

func aclText(v []byte) (string, error) {
	if len(v) < 4 || (len(v)-4)%8 != 0 || binary.LittleEndian.Uint32(v) != aclVersion {
		return "", errors.New("an access control list of an unknown form")
	}
	var all []string
	for v = v[4:]; len(v) > 0; v = v[8:] {
		tag, known := aclTags()[binary.LittleEndian.Uint16(v)]
		if !known {
			return "", errors.New("an access control list with an unknown entry")
		}
		id := ""
		if tag.id {
			id = strconv.FormatUint(uint64(binary.LittleEndian.Uint32(v[4:])), 10)
		}
		perm := []byte("---")
		for i, c := range []byte("rwx") {
			if binary.LittleEndian.Uint16(v[2:])&(4>>i) != 0 {
				perm[i] = c
			}
		}
		all = append(all, tag.name+":"+id+":"+string(perm))
	}
	return strings.Join(all, ","), nil
}

// ACL is an access control list of an entry. A header can have more entries than the kernel takes: see Value.
type ACL struct{ entries []aclEntry }

type aclEntry struct {
	tag, perm uint16
	id        uint32
	who       string // a name without a number
}

// The tags of entries.
const (
	aclUser      = 0x02
	aclGroupsOwn = 0x04
	aclGroup     = 0x08
	aclMask      = 0x10
	aclOther     = 0x20
)

// Lists returns the access control lists of an entry: its own, and for a folder the default list for new files in it; nil if it has
// none. A list that cannot be read at all has no entries.
func Lists(h *tar.Header) (own, inherited *ACL) {
	of := func(record, attr string) *ACL {
		// As an attribute it has the numbers of its users. GNU tar with --xattrs-include='*' writes both; in text it has names.
		if value := h.PAXRecords[xattrRecord+attr]; value != "" {
			return ACLOf([]byte(value))
		}
		if text := h.PAXRecords[record]; text != "" {
			return readACL(text)
		}
		return nil
	}
	if own = of(accessRecord, AccessList); h.Typeflag == tar.TypeDir {
		inherited = of(defaultRecord, DefaultList)
	}
	return own, inherited
}

// readACL reads a list. star adds the number to a name: "user:ann:r--:1000".
func readACL(text string) *ACL {
	list := &ACL{}
	for _, line := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '\n' }) {
		line, _, _ = strings.Cut(line, "#")
		part := strings.Split(strings.TrimSpace(line), ":")
		if len(part) < 3 {
			return &ACL{}
		}
		who := part[1]
		if len(part) > 3 && who != "" {
			who = part[3]
		}
		e := aclEntry{id: aclNoID}
		for t, is := range aclTags() {
			if (part[0] == is.name || part[0] == is.name[:1]) && is.id == (who != "") {
				e.tag = t
			}
		}
		if e.tag == 0 {
			return &ACL{}
		}
		if n, err := strconv.ParseUint(who, 10, 32); err == nil {
			e.id = uint32(n)
		} else if who == "root" { // on every host
			e.id = 0
		} else {
			e.who = who
		}
		for i, c := range "rwx" {
			if strings.ContainsRune(part[2], c) {
				e.perm |= 4 >> i
			}
		}
		list.entries = append(list.entries, e)
	}
	slices.SortStableFunc(list.entries, func(a, b aclEntry) int { return int(a.tag) - int(b.tag) }) // as the kernel wants them
	return list
}

// Value returns a list as the kernel takes it. ok is false for one that cannot be read, or that names users or groups without their
// numbers: GNU tar writes the names that its host has for them, also with --numeric-owner. Here they may be others'.
func (l *ACL) Value() (value []byte, ok bool) {
	v := binary.LittleEndian.AppendUint32(nil, aclVersion)
	for _, e := range l.entries {
		if e.who != "" {
			return nil, false
		}
		v = binary.LittleEndian.AppendUint16(v, e.tag)
		v = binary.LittleEndian.AppendUint16(v, e.perm)
		v = binary.LittleEndian.AppendUint32(v, e.id)
	}
	return v, len(l.entries) > 0
}

// MostID returns the largest number of a user or group in a list.
func (l *ACL) MostID() uint32 {
	most := uint32(0)
	for _, e := range l.entries {
		if (e.tag == aclUser || e.tag == aclGroup) && e.who == "" {
			most = max(most, e.id)
		}
	}
	return most
}

// Narrow returns the mode of a file that has this list and shall have none: no user may do more with it than before. With a list the
// group's bits of a mode are those of the list's mask, which is what any user or group of the list may have at most; so the mode alone
// would give them to the owning group. A user whom an entry keeps out is one of the others without it.
func (l *ACL) Narrow(mode uint32) uint32 {
	if l == nil {
		return mode
	}
	if len(l.entries) == 0 { // it cannot be read
		return mode &^ 0o077
	}
	group, other, mask := uint32(7), mode&7, uint32(7)
	for _, e := range l.entries {
		switch e.tag {
		case aclGroupsOwn:
			group = uint32(e.perm)
		case aclMask:
			mask = uint32(e.perm)
		case aclOther:
			other &= uint32(e.perm)
		}
	}
	group &= mask & (mode >> 3)
	for _, e := range l.entries {
		may := uint32(e.perm) & mask
		switch e.tag {
		case aclUser: // users who may be in the group
			group &= may
			other &= may
		case aclGroup:
			other &= may
		}
	}
	return mode&^0o077 | group<<3 | other
}

// ACLOf reads a list as the kernel shows it; nil for none.
func ACLOf(value []byte) *ACL {
	if len(value) == 0 {
		return nil
	}
	text, err := aclText(value)
	if err != nil {
		return &ACL{}
	}
	return readACL(text)
}
