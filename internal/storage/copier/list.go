package copier

import (
	"context"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// mostNames bounds the names that a shell is offered.
const mostNames = 1000

// mostWait is how long a shell may wait for the names: a file system of the node's own, or a machine's guest, may never answer.
const mostWait = 10 * time.Second

// Names returns the paths in the node that begin as the given one, folders with a slash at the end. It returns none on an error.
func (n *Node) Names(ctx context.Context, typed string) []string {
	r, w, err := os.Pipe()
	if err != nil {
		return nil
	}
	defer r.Close()
	ctx, done := context.WithTimeout(ctx, mostWait)
	defer done()
	defer context.AfterFunc(ctx, func() { r.Close() })()
	c, err := n.Start(ctx, Job{List: true, Path: typed}, nil, w)
	w.Close()
	if err != nil {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(r, mostNames*unix.PathMax))
	if _, err := c.Wait(nil); err != nil || len(text) == 0 {
		return nil
	}
	names := strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, typed) }) // a machine's guest may say anything
	return names[:min(len(names), mostNames)]
}

// list writes the names.
func (p *Place) list(w io.Writer) error {
	dir, typed := path.Split(p.Path)
	fd, _, err := p.open(path.Join("/", dir))
	if err != nil {
		return err
	}
	at, err := reopen(fd)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(at), dir)
	defer f.Close()
	entries, err := f.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range entries[:min(len(entries), mostNames)] {
		if !strings.HasPrefix(name, typed) {
			continue
		}
		var st unix.Stat_t
		if unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			name += "/"
		}
		if _, err := io.WriteString(w, dir+name+"\x00"); err != nil {
			return err
		}
	}
	return nil
}
