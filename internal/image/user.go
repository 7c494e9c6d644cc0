package image

import (
	"bufio"
	"errors"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"berth/internal/refuse"
)

// User returns the ids, as the node has them, that an image wants its command to run as. Names are looked up in the
// image's own /etc/passwd and /etc/group. An image that says nothing means root.
func User(img Image) (uid, gid uint32, err error) {
	name, group, _ := strings.Cut(img.Config.User, ":")
	if name == "" && group == "" {
		return 0, 0, nil
	}
	t, err := openTree(img.Lowers)
	if err != nil {
		return 0, 0, err
	}
	defer t.close()
	if name != "" {
		if uid, gid, err = t.lookup("etc/passwd", name); err != nil {
			return 0, 0, err
		}
	}
	if group != "" {
		gid, _, err = t.lookup("etc/group", group)
	}
	return uid, gid, err
}

// lookup finds a name or number in a file of NAME:x:ID:ID2 lines. A number need not be there.
func (t tree) lookup(file, name string) (id, second uint32, err error) {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		id = uint32(n)
		if second, err = t.secondOf(file, id); err != nil {
			return 0, 0, err
		}
		return id, second, nil
	}
	fields, err := t.line(file, func(f []string) bool { return f[0] == name })
	if err != nil {
		return 0, 0, err
	}
	if fields == nil {
		return 0, 0, refuse.Invalidf("the image wants to run as %q, which its /%s does not have", name, file)
	}
	return number(fields[2]), number(slices.Concat(fields, []string{"0"})[3]), nil
}

// secondOf returns the group of a user's number, 0 if the image does not know the user.
func (t tree) secondOf(file string, id uint32) (uint32, error) {
	fields, err := t.line(file, func(f []string) bool { return f[2] == strconv.FormatUint(uint64(id), 10) })
	if err != nil || len(fields) < 4 {
		return 0, err
	}
	return number(fields[3]), nil
}

// line returns the fields of the first line that ok accepts, nil if there is none or no such file.
func (t tree) line(file string, ok func([]string) bool) ([]string, error) {
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
		if fields := strings.Split(lines.Text(), ":"); len(fields) >= 3 && ok(fields) {
			return fields, nil
		}
	}
	return nil, lines.Err()
}

func number(s string) uint32 {
	n, _ := strconv.ParseUint(s, 10, 32)
	return uint32(n)
}
