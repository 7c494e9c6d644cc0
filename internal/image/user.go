package image

import (
	"bufio"
	"errors"
	"io/fs"
	"strconv"
	"strings"

	"berth/internal/refuse"
)

// User returns the uid and gid, as seen inside the node, that an image wants its command to run as. It looks names up
// in the image's own /etc/passwd and /etc/group. An image without a user means root. Error: refuse.Invalid if the image
// lacks the user or its line is broken; User never falls back to root.
func User(img Image) (uid, gid uint32, err error) {
	user, group, _ := strings.Cut(img.Config.User, ":")
	if user == "" && group == "" {
		return 0, 0, nil
	}
	t, err := openTree(img.Lowers)
	if err != nil {
		return 0, 0, err
	}
	defer t.close()
	if user != "" {
		if uid, gid, err = t.user(user); err != nil {
			return 0, 0, err
		}
	}
	if group != "" {
		gid, err = t.group(group)
	}
	return uid, gid, err
}

// user finds a user and its group by name or number. A number need not be in /etc/passwd: its group is then root's.
func (t tree) user(name string) (uid, gid uint32, err error) {
	if uid, err := number(name); err == nil {
		line, err := t.line("etc/passwd", 2, name)
		if err != nil || len(line) < 4 {
			return uid, 0, err
		}
		gid, err = number(line[3])
		return uid, gid, err
	}
	line, err := t.line("etc/passwd", 0, name)
	if err != nil {
		return 0, 0, err
	}
	if len(line) < 4 {
		return 0, 0, refuse.Invalidf("the image wants to run as user %q, which its /etc/passwd does not have", name)
	}
	uid, errUID := number(line[2])
	gid, errGID := number(line[3])
	return uid, gid, errors.Join(errUID, errGID)
}

// group finds a group by name or number.
func (t tree) group(name string) (uint32, error) {
	if gid, err := number(name); err == nil {
		return gid, nil
	}
	line, err := t.line("etc/group", 0, name)
	if err != nil {
		return 0, err
	}
	if len(line) < 3 {
		return 0, refuse.Invalidf("the image wants to run as group %q, which its /etc/group does not have", name)
	}
	return number(line[2])
}

// line returns the fields of the first line whose field number at is value. It returns nil if there is no such line or
// file.
func (t tree) line(file string, at int, value string) ([]string, error) {
	f, err := t.open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Split(lines.Text(), ":"); len(fields) > at && fields[at] == value {
			return fields, nil
		}
	}
	return nil, lines.Err()
}

// number parses an id and refuses one that a node cannot have.
func number(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n > maxID {
		return 0, refuse.Invalidf("the image wants to run as %q: not an id of 0 to %d", s, maxID)
	}
	return uint32(n), nil
}
