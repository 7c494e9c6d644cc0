package siteusers

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host"
	"berth/internal/spec/vnode"
	"berth/internal/storage/ids"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func TestRead(t *testing.T) {
	etc := t.TempDir()
	list := filepath.Join(etc, "users.yaml")
	if s, err := Read(list, etc); err != nil || len(s.Allowed) > 0 {
		t.Errorf("without a list: %+v, %v", s, err)
	}
	write(t, filepath.Join(etc, "subuid"), "u:300000:65536\n", 0o644)
	const text = "allow: [{from: 100000, count: 100000}]\n"
	write(t, list, text, 0o644)
	want := ids.Site{List: list, Allowed: []vnode.IDRange{{From: 100000, Count: 100000}}, Given: []vnode.IDRange{{From: 300000, Count: 65536}}}
	got, err := Read(list, etc)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	for why, spoil := range map[string]func(){
		"others than root can write": func() { write(t, list, text, 0o664) },
		"allow[0].count: missing": func() {
			write(t, list, "allow: [{from: 1000}, {count: 1000}]\n", 0o600)
		},
		"is not a file": func() {
			if err := os.Mkdir(list, 0o755); err != nil {
				t.Fatal(err)
			}
		},
	} {
		if err := os.RemoveAll(list); err != nil {
			t.Fatal(err)
		}
		spoil()
		if _, err := Read(list, etc); refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", why, err)
		}
	}
	if err := os.RemoveAll(list); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		write(t, list, text, 0o644)
		if err := os.Chown(list, 1000, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(list, etc); refuse.KindOf(err) != refuse.Cannot {
			t.Errorf("a list of user 1000: %v", err)
		}
	}
}

// TestChecks: doctor tells what is allowed, what is wrong with the list, and which nodes have what is not allowed any more.
func TestChecks(t *testing.T) {
	testkit.NeedsRoot(t)
	l, etc := layout.New(t.TempDir()), t.TempDir()
	check := func(states []host.State, found string) {
		t.Helper()
		all := Checks(l, etc)
		var got []host.State
		for _, c := range all {
			got = append(got, c.State)
		}
		if !cmp.Equal(got, states) || !strings.Contains(all[len(all)-1].Found, found) {
			t.Errorf("%+v; want %v and %q", all, states, found)
		}
	}
	check([]host.State{host.OK}, "allows none")
	write(t, l.UsersList(), "allow: [{from: 1500, count: 10}]\n", 0o644)
	u := &ids.Users{Dir: l.IDs(), Node: "n", Extents: []vnode.IDExtent{{From: 1505, Count: 2, As: vnode.SameIDs}}}
	if err := u.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	check([]host.State{host.OK}, "1500-1509, by "+l.UsersList())
	write(t, l.UsersList(), "allow: [{from: 1500, count: 6}]\n", 0o644)
	check([]host.State{host.OK, host.Broken}, "1506 of the host's ids are not in")
	// Another program gives away what a node has, which the doctor says before, too. After its remedy all is well.
	write(t, l.UsersList(), "allow: [{from: 1500, count: 10}, {from: 100000, count: 70000}]\n", 0o644)
	check([]host.State{host.Off}, "1500-1509, 100000-169999, by "+l.UsersList())
	defs := filepath.Join(etc, "login.defs")
	for _, has := range []string{"", "# ids\nSUB_UID_MIN\t\t   100000\nSUB_GID_COUNT 65536\n", "SUB_UID_MIN 170000\n", "SUB_UID_MAX 200000\n SUB_GID_MAX 200000\n"} {
		write(t, defs, has, 0o644)
		check([]host.State{host.Off}, "")
		if out, err := exec.Command("sh", "-c", strings.ReplaceAll(Checks(l, etc)[0].Remedy, "/etc/login.defs", defs)).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		check([]host.State{host.OK}, "")
	}
	write(t, filepath.Join(etc, "subuid"), "u:1504:10\n", 0o644)
	check([]host.State{host.Broken, host.Broken}, "/etc/subuid or /etc/subgid give ids 1504-1513 to a user for containers")
	if all := Checks(l, etc); !strings.Contains(all[1].Remedy, "usermod --del-subuids 1504-1513 ") {
		t.Errorf("%+v", all[1])
	}
	write(t, l.UsersList(), "allow: 5\n", 0o644)
	check([]host.State{host.Broken}, "allow: a single value where a list is expected")
}
