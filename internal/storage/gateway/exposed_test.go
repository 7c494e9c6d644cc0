package gateway

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/internal/sys/thread"
	"berth/test/testkit"
)

func TestExposed(t *testing.T) {
	testkit.NeedsRoot(t)
	no := false
	for name, c := range map[string]struct {
		prepare func(top string) error // in a mount namespace of its own; the source is top/above/source
		mount   vnode.Mount
		userNS  *bool
		exposed bool
	}{
		"open":                        {exposed: true},
		"the source itself is closed": {prepare: mode("above/source", 0o700, 0), exposed: true},
		"closed above":                {prepare: mode("above", 0o700, 0)},
		"closed far above":            {prepare: mode(".", 0o600, 0)},
		"open to a group":             {prepare: mode("above", 0o710, 0), exposed: true},
		"open to others only":         {prepare: mode("above", 0o701, 0), exposed: true},
		"closed, but another user's":  {prepare: mode("above", 0o700, 1000), exposed: true},
		"nosuid":                      {prepare: tmpfs("above", unix.MS_NOSUID)},
		"nosuid, more beneath":        {prepare: both(tmpfs("above", unix.MS_NOSUID), tmpfs("above/source/beneath", 0)), exposed: true},
		"all nosuid":                  {prepare: both(tmpfs("above", unix.MS_NOSUID), tmpfs("above/source/beneath", unix.MS_NOSUID))},
		"hidden by a second mount":    {prepare: both(tmpfs("above", unix.MS_NOSUID), tmpfs("above", 0)), exposed: true},
		"read-only":                   {mount: vnode.Mount{ReadOnly: true}},
		"ids as they are":             {mount: vnode.Mount{Map: vnode.Identity}},
		"ids of the host":             {mount: vnode.Mount{Map: vnode.Identity}, userNS: &no, exposed: true},
	} {
		t.Run(name, func(t *testing.T) {
			top, err := os.MkdirTemp("", "berth-exposed-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(top) })
			m := c.mount
			m.Source, m.Target, m.NosuidSource = filepath.Join(top, "above/source"), "/data", true
			n := Node{UserNS: true, Layout: layout.New(t.TempDir())}
			n.UserNS = c.userNS == nil
			var why string
			var looked error
			err = thread.Own(func() error {
				if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
					return err
				}
				if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
					return err
				}
				// A file system that honours set-user-id bits, whatever /tmp is.
				if err := unix.Mount("ground", top, "tmpfs", 0, "mode=0755"); err != nil {
					return err
				}
				if err := os.MkdirAll(m.Source+"/beneath", 0o755); err != nil {
					return err
				}
				if c.prepare != nil {
					if err := c.prepare(top); err != nil {
						return err
					}
				}
				var err error
				why, err = Exposed(m, n.UserNS)
				_, looked = Bind{}.Look(t.Context(), m, n)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if (why != "") != c.exposed {
				t.Errorf("exposed: %q, want %v", why, c.exposed)
			}
			if c.exposed && (refuse.KindOf(looked) != refuse.Cannot || !strings.Contains(looked.Error(), why)) {
				t.Errorf("look: %v, want a refusal with %q", looked, why)
			}
			if !c.exposed && looked != nil {
				t.Errorf("look: %v", looked)
			}
		})
	}
}

// mode returns a function that sets a folder's mode and owner.
func mode(dir string, mode uint32, uid int) func(string) error {
	return func(top string) error {
		if err := unix.Chown(filepath.Join(top, dir), uid, 0); err != nil {
			return err
		}
		return unix.Chmod(filepath.Join(top, dir), mode)
	}
}

// tmpfs returns a function that mounts a tmpfs, and makes the source in it again if it is above the source.
func tmpfs(dir string, flags uintptr) func(string) error {
	return func(top string) error {
		if err := unix.Mount("test", filepath.Join(top, dir), "tmpfs", flags, "mode=0755"); err != nil {
			return err
		}
		return os.MkdirAll(filepath.Join(top, "above/source/beneath"), 0o755)
	}
}

func both(a, b func(string) error) func(string) error {
	return func(top string) error {
		if err := a(top); err != nil {
			return err
		}
		return b(top)
	}
}
