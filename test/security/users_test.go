package security

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// as is a line of shell by which root inside becomes a user, with setuid(2), and does something.
func as(user int, does string) string {
	return fmt.Sprintf("/usr/bin/setpriv --reuid %d --regid %d --clear-groups /bin/sh -c '%s'", user, user, does)
}

// owner returns the user and the group to whom a file belongs on the host.
func owner(t *testing.T, path string) [2]int {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return [2]int{int(st.Uid), int(st.Gid)}
}

// sharing allows ids and starts a node that has these users and sees a folder twice: idmapped at /data, as it is at /raw.
func (w *world) sharing(t *testing.T, spec string) (name, dir string, bases []int) {
	t.Helper()
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip("no setpriv (util-linux) on this host")
	}
	list := filepath.Join(w.Root, "users.yaml")
	if err := os.WriteFile(list, []byte("allow: [{from: 1500, count: 1}, {from: 70000, count: 100}]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	name = w.up(t, spec+fmt.Sprintf("\nimage: host\nmounts: [{source: %s, target: /data}, {source: %s, target: /raw, map: identity}]", dir, dir))
	var s shown
	decode(t, w.OK(t, "show", name, "--json"), &s)
	for r := range strings.SplitSeq(s.IDs, ", ") {
		from, _, _ := strings.Cut(r, "-")
		base, err := strconv.Atoi(from)
		if err != nil {
			t.Fatal(err)
		}
		bases = append(bases, base)
	}
	return name, dir, bases
}

// TestSharedUsers: root inside is each user that its node shares with the host: it becomes them, its processes and files on the
// host are theirs, and it opens what is theirs alone. Owners are those of the table in docs/gateways.md.
func TestSharedUsers(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		name, dir, base := w.sharing(t, "users: [{from: 1500, count: 1, as: same}, {from: 70000, count: 100, as: same}, {from: 300000, count: 70000, as: private}]")
		owners := map[int]int{0: base[0], 1000: base[0] + 1000, 1500: 1500, 65535: base[0] + 65535, 300000: base[1], 365536: base[2], 369999: base[2] + 4463}
		for user := 70000; user < 70100; user++ {
			owners[user] = user
		}
		script := "set -e\ncd /\n"
		for user := range owners {
			script += as(user, fmt.Sprintf("echo x >/data/%d; echo x >/raw/%d-raw", user, user)) + "\n"
		}
		w.OK(t, "exec", name, "--", "/bin/sh", "-c", script)
		for user, id := range owners {
			if got := owner(t, filepath.Join(dir, strconv.Itoa(user))); got != [2]int{user, user} {
				t.Errorf("idmapped: what %d writes is of %v on the host", user, got)
			}
			if got := owner(t, filepath.Join(dir, strconv.Itoa(user)+"-raw")); got != [2]int{id, id} {
				t.Errorf("as it is: what %d writes is of %v on the host, want %d", user, got, id)
			}
		}
		for _, user := range []int{69999, 99999, 70100, 370000} {
			for _, try := range []string{as(user, "true"), fmt.Sprintf("/bin/chown %d /data/0", user), fmt.Sprintf("/bin/chgrp %d /raw/0", user)} {
				if _, stderr, code := w.Try("exec", name, "--", "/bin/sh", "-c", try); code == 0 || !strings.Contains(stderr, "Invalid argument") {
					t.Errorf("%s: exit code %d: %s", try, code, stderr)
				}
			}
			if _, stderr, code := w.Try("exec", "--user", strconv.Itoa(user), name, "--", "/bin/true"); code != 125 {
				t.Errorf("exec as %d: exit code %d: %s", user, code, stderr)
			}
		}
		for _, user := range []int{0, 1500, 65535, 70042, 369999} { // as ping does
			w.OK(t, "exec", name, "--", "/bin/sh", "-c", as(user, `perl -e "socket(S, 2, 2, 1) or die"`))
		}
		secret := w.secret(t, dir, 70042)
		if got := w.OK(t, "exec", name, "--", "/bin/cat", "/raw/"+secret); got != "theirs" {
			t.Errorf("root inside reads %q from a file of user 70042, whom it shares", got)
		}
		// Its process is that user's on the host.
		r := w.Command("exec", "--user", "70042", name, "--", "/bin/cat")
		in, err := r.StdinPipe()
		if err == nil {
			err = r.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() { in.Close(); _ = r.Wait() }()
		if !eventuallyOwned(70042) {
			t.Error("no process of user 70042 is on the host")
		}
	})
}

// TestLargestMap: a spec that is valid has a map that the kernel and the runtimes take, up to its 340 lines.
func TestLargestMap(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		if err := os.WriteFile(filepath.Join(w.Root, "users.yaml"), []byte("allow: [{from: 500, count: 1000}]\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		spec := "users:"
		for id := 990; id < 990+338; id++ {
			spec += fmt.Sprintf("\n- {from: %d, count: 1, as: same}", id)
		}
		name := w.up(t, spec)
		for _, file := range []string{"uid_map", "gid_map"} {
			if got := strings.Count(w.OK(t, "exec", name, "--", "/bin/cat", "/proc/self/"+file), "\n"); got != 340 {
				t.Errorf("%d lines of %s, want 340", got, file)
			}
		}
	})
}

// TestIdentityChange: what a job may do that changes its user while it has a file open is what it may do on a plain host.
func TestIdentityChange(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		name, dir, _ := w.sharing(t, "users: [{from: 1500, count: 1, as: same}, {from: 70000, count: 100, as: same}]")
		if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // the host's users come to it too
			t.Fatal(err)
		}
		// A file of user 1500 alone, opened by it; then the process is user 70001, who has the descriptor and not the file.
		script := `cd %[1]s; umask 077
` + as(1500, `echo first >%[1]s/f`) + `
exec 3>>%[1]s/f 4<%[1]s/f
` + as(70001, `
echo second >&3 && echo wrote
read line <&4 && echo read $line
(echo third >>%[1]s/f) 2>/dev/null || echo no open
(exec 5>>/proc/self/fd/3) 2>/dev/null || echo no open again
chown 70001 %[1]s/f 2>/dev/null || echo no chown
rm -f %[1]s/f 2>/dev/null; test -e %[1]s/f || echo gone
echo fourth >&3 && echo wrote on
echo mine >%[1]s/g; stat -c "%%u %%a" %[1]s/g`) + `
rm -f %[1]s/f %[1]s/g`
		inside := w.OK(t, "exec", name, "--", "/bin/sh", "-c", fmt.Sprintf(script, "/data"))
		out, err := exec.Command("/bin/sh", "-c", fmt.Sprintf(script, dir)).CombinedOutput()
		if err != nil || inside != string(out) || !strings.HasSuffix(inside, "wrote on\n70001 600\n") {
			t.Errorf("in the node:\n%s\non the host (%v):\n%s", inside, err, out)
		}
	})
}

// secret makes a file that only this user of the host can read.
func (w *world) secret(t *testing.T, dir string, user int) (name string) {
	t.Helper()
	name = "secret-of-" + strconv.Itoa(user)
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, user, user); err != nil {
		t.Fatal(err)
	}
	return name
}

func eventuallyOwned(user int) bool {
	for range 400 {
		out, _ := exec.Command("pgrep", "-U", strconv.Itoa(user)).Output()
		if len(out) > 0 {
			return true
		}
	}
	return false
}

// TestOneSharedUser: where a user can become root, the node shares this user's ids alone, so root inside is nobody else of the site.
func TestOneSharedUser(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		name, dir, _ := w.sharing(t, "users: [{from: 1500, count: 1, as: same}]\nno_new_privileges: false\nuser: 1500:1500")
		w.OK(t, "exec", "--user", "0", name, "--", "/bin/sh", "-c", "cd /; "+as(1500, "echo x >/data/mine"))
		if got := owner(t, filepath.Join(dir, "mine")); got != [2]int{1500, 1500} {
			t.Errorf("the user's file is of %v", got)
		}
		mine, other := w.secret(t, dir, 1500), w.secret(t, dir, 70042)
		if got := w.OK(t, "exec", "--user", "0", name, "--", "/bin/cat", "/raw/"+mine); got != "theirs" {
			t.Errorf("root inside reads %q from its user's file", got)
		}
		for try, says := range map[string]string{
			as(70042, "true"):              "Invalid argument",
			"/bin/cat /raw/" + other:       "Permission denied",
			"/bin/chown 70042 /data/mine":  "Invalid argument",
			"/bin/chmod 644 /raw/" + other: "not permitted",
		} {
			if _, stderr, code := w.Try("exec", "--user", "0", name, "--", "/bin/sh", "-c", try); code == 0 || !strings.Contains(stderr, says) {
				t.Errorf("%s: exit code %d: %s", try, code, stderr)
			}
		}
		file := filepath.Join(t.TempDir(), "node.yaml")
		spec := "name: " + unique(t) + "\nimage: host\ncommand: [/bin/true]\nno_new_privileges: false\nusers: [{from: 70000, count: 2, as: same}]\n"
		if err := os.WriteFile(file, []byte(spec), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, stderr, code := w.Try("apply", "-f", file); code != 2 || !strings.Contains(stderr, ":5:30: users[0].count: a node whose user can become root") {
			t.Errorf("two users beside sudo: exit code %d: %s", code, stderr)
		}
	})
}
