package treetar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// The kernel shows an access control list as an attribute: a version, then entries of tag, permissions and id, little endian
// (include/uapi/linux/posix_acl_xattr.h). It translates the ids to those of the user namespace of whoever asks. In a stream the
// list is text, as star and GNU tar write it: "user::rw-,user:1000:r--,group::r--,mask::r--,other::---".

const (
	aclVersion = 2
	aclNoID    = 0xffffffff
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

// aclValue reads an access control list whose users and groups are numbers. star adds the number to a name: "user:ann:r--:1000".
func aclValue(text string) ([]byte, error) {
	v := binary.LittleEndian.AppendUint32(nil, aclVersion)
	for _, line := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '\n' }) {
		line, _, _ = strings.Cut(line, "#")
		part := strings.Split(strings.TrimSpace(line), ":")
		if len(part) < 3 {
			return nil, fmt.Errorf("access control list entry %q", line)
		}
		who := part[1]
		if len(part) > 3 && who != "" {
			who = part[3]
		}
		tag, id := uint16(0), uint32(aclNoID)
		for t, is := range aclTags() {
			if is.name == part[0] && is.id == (who != "") {
				tag = t
			}
		}
		if who != "" {
			n, err := strconv.ParseUint(who, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("access control list entry %q names a user or group without a number", line)
			}
			id = uint32(n)
		}
		if tag == 0 {
			return nil, fmt.Errorf("access control list entry %q", line)
		}
		var perm uint16
		for i, c := range "rwx" {
			if strings.ContainsRune(part[2], c) {
				perm |= 4 >> i
			}
		}
		v = binary.LittleEndian.AppendUint16(v, tag)
		v = binary.LittleEndian.AppendUint16(v, perm)
		v = binary.LittleEndian.AppendUint32(v, id)
	}
	return v, nil
}
