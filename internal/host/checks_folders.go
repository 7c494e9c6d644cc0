package host

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"berth/internal/sys/refuse"
)

// little is the least free space, in bytes, that the file system of images and deltas should have.
const little = 2 << 30

// space checks the free space for images and deltas.
func (d *doctor) space() Check {
	s := d.Space
	c := Check{
		Name: "free space", State: OK, Why: "images and deltas live there; a full disk stops nodes",
		Found: fmt.Sprintf("%s of %s at %s", gib(s.Free), gib(s.Total), d.Lib),
	}
	switch {
	case s.Err != nil:
		c.State, c.Found = Broken, s.Err.Error()
	case s.Total == 0:
		c.State, c.Found = Broken, "not tried"
	case s.Free < little:
		c.State, c.Wanted, c.Remedy = Off, gib(little)+" or more", "# free some, or: berth --root DIR … on another file system"
	case s.Inodes > 0 && s.FreeInodes < s.Inodes/50:
		c.State, c.Found = Off, fmt.Sprintf("%d of %d inodes", s.FreeInodes, s.Inodes)
		c.Wanted, c.Remedy = "a fiftieth or more", "# remove small files there, or: berth --root DIR … on another file system"
	}
	return c
}

func gib(n uint64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }

// folders checks that only root can enter or write to Berth's folders: layers hold set-id programs, live folders sockets.
func (d *doctor) folders() Check {
	c := Check{
		Name: "Berth's folders", State: OK, Why: "who can write there is root on the host; who can read there sees all nodes' files",
	}
	var found, remedy []string
	for _, f := range d.Folders {
		switch {
		case errors.Is(f.Err, fs.ErrNotExist):
			found = append(found, f.Path+" not made yet")
			continue
		case f.Err != nil:
			c.State = Broken
			found = append(found, f.Err.Error())
			continue
		}
		found = append(found, fmt.Sprintf("%s %04o", f.Path, f.Mode))
		if f.UID != 0 {
			c.State = Broken
			found[len(found)-1] += fmt.Sprintf(" of user %d", f.UID)
			remedy = append(remedy, "chown root "+f.Path)
		}
		if too := f.Mode & f.Closed; too != 0 {
			c.State = Broken
			remedy = append(remedy, fmt.Sprintf("chmod %04o %s", f.Mode&^f.Closed, f.Path))
		}
	}
	if len(d.Folders) == 0 {
		c.State, found = Broken, []string{"not tried"}
	}
	c.Found, c.Remedy = strings.Join(found, ", "), strings.Join(remedy, "\n")
	if len(remedy) > 0 {
		c.Wanted = "root's, and closed to others"
	}
	return c
}

// idmaps checks each kind of file system in use, because the mounts of a spec may come from it.
func (d *doctor) idmaps() []Check {
	var checks []Check
	for _, m := range d.IdmapFS {
		c := Check{
			Name: "idmap on " + m.Type, State: OK, Found: "works at " + m.At,
			Why: "a mount of a spec from there needs it, or map: identity",
		}
		var refused *refuse.Error
		switch {
		case errors.As(m.Err, &refused):
			c.State, c.Found = Lacks, "not at "+m.At
		case m.Err != nil:
			c.State, c.Found = Broken, fmt.Sprintf("at %s: %v", m.At, m.Err)
		}
		checks = append(checks, c)
	}
	return checks
}
