package devgroup

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host/group"
	"berth/internal/host/group/grouptest"
	"berth/test/testkit"
)

// opens runs a shell in a group and returns for each device whether it can be opened as asked, such as "r /dev/zero".
func opens(t *testing.T, dir string, asked ...string) map[string]bool {
	t.Helper()
	var script strings.Builder
	script.WriteString("echo 0 > " + dir + "/cgroup.procs || exit 1\n")
	for _, a := range asked {
		how, path, _ := strings.Cut(a, " ")
		redirect := map[string]string{"r": "<", "w": ">", "rw": "<>"}[how]
		fmt.Fprintf(&script, "( : %s %s ) 2>&- && echo '%s'\n", redirect, path, a)
	}
	script.WriteString("exit 0")
	cmd := exec.Command("/bin/sh", "-c", script.String())
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("shell in %s: %v %s", dir, err, &errs)
	}
	got := map[string]bool{}
	for _, a := range asked {
		got[a] = strings.Contains("\n"+out.String(), "\n"+a+"\n")
	}
	return got
}

// TestKernelDevices: devices that are not listed cannot be opened, even by the host's root. A device added to the list can
// be opened until it is removed again. This holds on both cgroup versions, and each change is one step.
func TestKernelDevices(t *testing.T) {
	h := grouptest.Host(t)
	versions := map[string]func(t *testing.T) Devices{
		"v1": func(t *testing.T) Devices {
			if h.Has("devices") != "v1" {
				t.Skip("no device controller on cgroup v1")
			}
			return *Of(h, grouptest.New(t, h, group.Kinds(), group.Steps))
		},
		"v2": func(t *testing.T) Devices {
			if h.V2 == "" {
				t.Skip("no cgroup v2 tree")
			}
			return Devices{Dir: group.V2Dir(h, grouptest.New(t, h, group.Kinds(), group.Steps)), V2: true}
		},
	}
	for name, group := range versions {
		t.Run(name, func(t *testing.T) {
			d := group(t)
			loops := map[string]string{"loop0": "b 7:0", "loop1": "b 7:1"}
			asked := []string{"r /dev/zero", "rw /dev/null", "r /dev/kmsg"}
			for l := range loops {
				if _, err := os.Stat("/dev/" + l); err != nil {
					t.Skip("no /dev/" + l)
				}
				asked = append(asked, "r /dev/"+l, "rw /dev/"+l)
			}
			want := func(loop0, loop0rw, loop1rw bool) map[string]bool {
				return map[string]bool{
					"r /dev/zero": true, "rw /dev/null": true, "r /dev/kmsg": false,
					"r /dev/loop0": loop0, "rw /dev/loop0": loop0rw, "r /dev/loop1": loop1rw, "rw /dev/loop1": loop1rw,
				}
			}
			look := func(what string, want map[string]bool) {
				t.Helper()
				if diff := cmp.Diff(want, opens(t, d.Dir, asked...)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", what, diff)
				}
			}
			grouptest.Do(t, Kinds(), &d)
			look("closed", want(false, false, false))

			read := &Change{Devices: Devices{Dir: d.Dir, V2: d.V2, Allow: []string{"b 7:0 r", "b 7:1 rw"}}}
			grouptest.Do(t, Kinds(), read)
			look("two more", want(true, false, true))
			grouptest.Do(t, Kinds(), read) // again, as after a keeper that was killed
			look("again", want(true, false, true))

			write := &Change{Devices: Devices{Dir: d.Dir, V2: d.V2, Allow: []string{"b 7:0 r", "b 7:0 w"}}, Old: read.Allow}
			grouptest.Do(t, Kinds(), write)
			look("two rules of one number", want(true, true, false))
			testkit.Must(t, write.Undo(t.Context()))
			look("undone", want(true, false, true))
			if err := write.Verify(t.Context()); err == nil {
				t.Error("Verify sees no other list")
			}
			testkit.Must(t, read.Undo(t.Context()))
			look("closed again", want(false, false, false))
		})
	}
}

// TestForeignProgram: Berth replaces the only program of a group, and returns an error if there are more.
func TestForeignProgram(t *testing.T) {
	h := grouptest.Host(t)
	if h.V2 == "" {
		t.Skip("no cgroup v2 tree")
	}
	d := Devices{Dir: group.V2Dir(h, grouptest.New(t, h, group.Kinds(), group.Steps)), V2: true}
	grouptest.Do(t, Kinds(), &d)
	inner := filepath.Join(d.Dir, "inner")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(inner) })
	if err := attachProgram(inner, []deviceRule{{major: 1, minor: 5, access: 7}}); err != nil { // /dev/zero alone
		t.Fatal(err)
	}
	got := opens(t, inner, "r /dev/zero", "r /dev/full")
	if diff := cmp.Diff(map[string]bool{"r /dev/zero": true, "r /dev/full": false}, got); diff != "" {
		t.Errorf("a group below narrows it further (-want +got):\n%s", diff)
	}
	if err := checkProgram(inner, nil); err == nil || !strings.Contains(err.Error(), programName) {
		t.Errorf("a program that denies all is taken for another: %v", err)
	}
}

func TestDeviceRules(t *testing.T) {
	for _, bad := range []string{"", "a *:* rwm", "b 8 rw", "c 8:x r", "b :1 r"} {
		if r, err := parseRule(bad); err == nil {
			t.Errorf("%q is %v", bad, r)
		}
	}
	rules, err := deviceRules([]string{"b 8:16 r", "c 10:229 rw", "b 8:16 wm"})
	if err != nil {
		t.Fatal(err)
	}
	want := "b 8:16 rwm, c 10:229 rw, c 136:* rw, c 1:3 rw, c 1:5 rw, c 1:7 rw, c 1:8 rw, c 1:9 rw, c 5:0 rw, c 5:1 rw, c 5:2 rw"
	if got := ruleTexts(rules); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	c := &Change{Devices: Devices{Allow: []string{"b 8:16 rw", "b 8:32 r"}}, Old: []string{"b 8:16 rw", "c 10:229 rw"}}
	if got := c.String(); got != "allow b 8:32 r; deny c 10:229 rw" {
		t.Errorf("a change is %q", got)
	}
}

func TestJournal(t *testing.T) {
	allow := Devices{Dir: "/d", V2: true, Allow: []string{"b 8:16 rw"}}
	grouptest.Journal(t, Kinds(), &allow, &Change{Devices: allow, Old: []string{"b 8:32 r"}})
}
