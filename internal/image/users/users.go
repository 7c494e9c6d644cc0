// Package users finds a user of a node by name or number, in the node's own /etc/passwd and /etc/group. It never looks at
// the host's, except for a node whose files are the host's. Only package image uses it, which is large enough without it.
package users

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/sys/inroot"
	"berth/internal/sys/refuse"
)

// User is a user in the node's own ids.
type User struct {
	UID, GID uint32
	Groups   []uint32 // supplementary, with GID first: a set-group-id program must not take that from the user (CVE-2022-2989)
}

// Open opens a file of a node by its path inside, without a leading slash.
type Open func(name string) (io.ReadCloser, error)

// Has reports whether a node has a user id, or with gid a group id.
type Has func(gid bool, id uint32) bool

// files is where users are looked up.
type files struct {
	open Open
	has  Has
}

// Find finds USER or USER:GROUP, each a name or a number. "" is root. A name must be in the node's files. A number need not:
// its group is then root's. The supplementary groups are those that list the user as a member, unless GROUP is given, as in
// other container engines. Error: refuse.Invalid if the node lacks the name or its line is damaged.
func Find(open Open, has Has, who string) (User, error) {
	in := files{open, has}
	name, group, _ := strings.Cut(who, ":")
	var u User
	var err error
	if name != "" {
		if name, err = u.take(in, name); err != nil {
			return User{}, err
		}
	}
	var member []uint32
	switch {
	case group != "":
		u.GID, err = in.findGroup(group)
	case name != "":
		member, err = in.memberOf(name, u.GID)
	}
	if err != nil {
		return User{}, err
	}
	u.Groups = append([]uint32{u.GID}, member...)
	return u, nil
}

// take sets the ids of the user with this name or number, and returns the user's name; "" if it has none.
func (u *User) take(in files, who string) (name string, err error) {
	at := 0
	uid, numberErr := in.id(false, who)
	if numberErr == nil {
		at = 2
	}
	line, err := find(in.open, "etc/passwd", func(f []string) bool { return len(f) > at && f[at] == who })
	switch {
	case err != nil:
		return "", err
	case line == nil && at == 2:
		u.UID = uid
		return "", nil
	case line == nil && isDigits(who):
		return "", numberErr
	case line == nil:
		return "", refuse.Invalidf("user %q is not in the node's /etc/passwd", who)
	case len(line) < 4:
		return "", refuse.Invalidf("the line of user %q in the node's /etc/passwd is damaged", who)
	}
	var gidErr error
	if u.UID, err = in.id(false, line[2]); err == nil {
		u.GID, gidErr = in.id(true, line[3])
	}
	return line[0], errors.Join(err, gidErr)
}

func (in files) findGroup(who string) (uint32, error) {
	gid, numberErr := in.id(true, who)
	if numberErr == nil {
		return gid, nil
	}
	line, err := find(in.open, "etc/group", func(f []string) bool { return f[0] == who })
	switch {
	case err != nil:
		return 0, err
	case line == nil && isDigits(who):
		return 0, numberErr
	case line == nil:
		return 0, refuse.Invalidf("group %q is not in the node's /etc/group", who)
	case len(line) < 3:
		return 0, refuse.Invalidf("the line of group %q in the node's /etc/group is damaged", who)
	}
	return in.id(true, line[2])
}

// memberOf lists the groups that have a user as a member, in ascending order. It ignores damaged lines: they are not about
// the user that was asked for.
func (in files) memberOf(user string, own uint32) (groups []uint32, err error) {
	_, err = find(in.open, "etc/group", func(f []string) bool {
		if len(f) > 3 && slices.Contains(strings.Split(f[3], ","), user) {
			if gid, err := in.id(true, f[2]); err == nil && gid != own {
				groups = append(groups, gid)
			}
		}
		return false
	})
	slices.Sort(groups)
	return slices.Compact(groups), err
}

// longest is the most bytes of a file that is read, whatever its lines. A node's root writes these files.
const longest = 4 << 20

// find returns the fields of the first line that matches. It returns nil if there is no such line or file. A longer file than longest is
// refused: the user may be where nobody looked.
func find(open Open, name string, matches func(fields []string) bool) ([]string, error) {
	f, err := open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the node's /%s: %w", name, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, longest+1))
	if err != nil {
		return nil, fmt.Errorf("read the node's /%s: %w", name, err)
	}
	if len(text) > longest {
		return nil, refuse.Invalidf("the node's /%s has more than %d MiB: no user is looked for in it", name, longest>>20)
	}
	for line := range bytes.Lines(text) {
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		if fields := strings.Split(string(line), ":"); matches(fields) {
			return fields, nil
		}
	}
	return nil, nil
}

// id parses an id and refuses one that the node does not have.
func (in files) id(gid bool, s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err == nil && in.has(gid, uint32(n)) {
		return uint32(n), nil
	}
	kind := "user"
	if gid {
		kind = "group"
	}
	return 0, refuse.Invalidf("the node has no %s id %s; its spec's users can give it more than 0 to 65535", kind, s)
}

func isDigits(s string) bool {
	return strings.Trim(s, "0123456789") == "" || strings.HasPrefix(s, "-")
}

// In opens files below a folder. It follows links as a process whose root is the folder would, and never leaves it.
func In(folder string) Open {
	return func(name string) (io.ReadCloser, error) {
		root, err := unix.Open(folder, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		defer unix.Close(root)
		fd, err := inroot.Open(root, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0) // opening a FIFO must not block
		if err != nil {
			return nil, err
		}
		f := os.NewFile(uintptr(fd), name)
		if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
			f.Close()
			return nil, fs.ErrNotExist
		}
		return f, nil
	}
}
