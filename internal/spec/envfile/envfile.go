// Package envfile reads variables of the environment from files, one NAME=VALUE per line, as other container engines do.
package envfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// longest is the most bytes of a file: more than the kernel passes to a program.
const longest = 1 << 20

// Read reads a file of variables. Empty lines and those that begin with # are left out; a value begins behind the first '='
// and is taken as it is, with its quotes. A line with a name alone takes its value from lookup, and is left out if lookup
// has none. Errors name the line and never repeat it.
func Read(file string, lookup func(name string) (string, bool)) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, refuse.Invalidf("read variables: %w", err)
	}
	defer f.Close()
	return parse(f, file, lookup)
}

// Secret reads a file of variables that are secret. The file must belong to root, and no other user may read or write it.
// A line with a name alone is left out. Without a file there are no variables.
func Secret(file string) ([]string, error) {
	if file == "" {
		return nil, nil
	}
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a FIFO must not block
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse.NotFoundf("env_from: there is no file %s", file)
	}
	if err != nil {
		return nil, fmt.Errorf("env_from: %w", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("env_from: look at %s: %w", file, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, refuse.Invalidf("env_from: %s is not a file", file)
	case st.Uid != 0, st.Mode&0o077 != 0:
		return nil, refuse.Cannotf("chown root "+file+"; chmod 600 "+file,
			"env_from: %s is not root's alone: owner %d, mode %04o", file, st.Uid, st.Mode&0o7777)
	}
	return parse(f, file, func(string) (string, bool) { return "", false })
}

func parse(r io.Reader, file string, lookup func(name string) (string, bool)) ([]string, error) {
	text, err := io.ReadAll(io.LimitReader(r, longest+1))
	if err != nil {
		return nil, refuse.Invalidf("read variables: %w", err)
	}
	if len(text) > longest {
		return nil, refuse.Invalidf("read variables from %s: it is larger than 1 MiB", file)
	}
	var all []string
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			continue
		}
		one, err := Variable(line, lookup)
		if err != nil {
			return nil, refuse.Invalidf("%s:%d: %w", file, number, err)
		}
		all = append(all, one...)
	}
	return all, nil
}

// Variable reads NAME=VALUE, or NAME, whose value is that of lookup. The list is empty if lookup has none.
func Variable(text string, lookup func(name string) (string, bool)) ([]string, error) {
	name, value, given := strings.Cut(text, "=")
	if !given {
		if value, given = lookup(name); !given {
			value = "" // the name is checked
		}
	}
	if wrong := vnode.CheckVariable(name, value); wrong != "" {
		return nil, fmt.Errorf("%s: want NAME=VALUE", wrong)
	}
	if !given {
		return nil, nil
	}
	return []string{name + "=" + value}, nil
}
