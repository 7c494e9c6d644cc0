package security

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/env"
)

// TestHostSecrets puts secrets on the host in all places that a node with image host might see.
func TestHostSecrets(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		mark := "berth-secret-" + unique(t)
		var planted []string
		for _, top := range []string{"/etc", "/usr", "/var", "/opt", "/root", "/home"} {
			for i, mode := range []os.FileMode{0o600, 0o640, 0o400, 0o660} {
				for j, dir := range []string{top, filepath.Join(top, mark), filepath.Join(top, mark, "deep/er")} {
					path := filepath.Join(dir, fmt.Sprintf("%s-%d-%d", mark, i, j))
					plant(t, path, "the secret", mode)
					if mode&0o40 != 0 { // of groups that the host's users may be in
						if err := os.Chown(path, 0, []int{4, 42, 50}[j]); err != nil {
							t.Fatal(err)
						}
					}
					planted = append(planted, path)
				}
			}
		}
		open := filepath.Join("/etc", mark, mark+"-open")
		plant(t, open, "no secret", 0o644)

		got := map[string]string{}
		w.probe(t, &got, append([]string{"read", open}, planted...)...)
		if got[open] != "read no secret" {
			t.Errorf("what everybody may read of /etc: %q", got[open]) // otherwise the other checks prove nothing
		}
		delete(got, open)
		for path, what := range got {
			if what != "EACCES" && what != "ENOENT" {
				t.Errorf("%s: %s", path, what)
			}
		}
		// The node searches its whole root for them.
		found := map[string]string{}
		w.probe(t, &found, "find", "/", mark)
		for path, what := range found {
			if what != "EACCES" && path != open {
				t.Errorf("found %s: %s", path, what)
			}
		}
	})
}

// TestRootFolderIsClosed: an ordinary user of the host reads and writes nothing of Berth's, whatever the umask of the
// command that made it, and the environment of a node, which may hold secrets, is for root alone.
func TestRootFolderIsClosed(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		old := unix.Umask(0) // inherited by the commands below
		name := w.up(t, "command: [/probe/probe, sleep]")
		unix.Umask(old)
		var open []string
		stdout, stderr, _ := env.Try(asUser(exec.Command(build.probe, "open", w.Root, filepath.Join(w.Root, "run"),
			filepath.Join(w.Root, "run/nodes", name), filepath.Join(w.Root, "lib/nodes", name), filepath.Join(w.Root, "lib/images")), nobody))
		if stderr != "" {
			t.Fatal(stderr)
		}
		decode(t, stdout, &open)
		if len(open) > 0 {
			t.Errorf("an ordinary user opens %q", open)
		}
		for _, file := range []string{"lib/nodes/NAME/spec.json", "lib/nodes/NAME/journal", "run/nodes/NAME/journal", "run/nodes/NAME/bundle/config.json", "lib/nodes/NAME/log"} {
			path := filepath.Join(w.Root, strings.ReplaceAll(file, "NAME", name))
			info, err := os.Stat(path)
			if err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v, %v", path, info.Mode(), err)
			}
		}
	})
}

// TestKeeperIsRoots checks that only root can connect to the keeper, which runs commands as root.
func TestKeeperIsRoots(t *testing.T) {
	w := anyRuntime(t)
	old := unix.Umask(0)
	w.up(t, "")
	unix.Umask(old)
	socket := filepath.Join(w.Root, "run/keeper.sock")
	got := map[string]string{}
	stdout, _, _ := env.Try(asUser(exec.Command(build.probe, "socket", socket), nobody))
	decode(t, stdout, &got)
	if got[socket] != "EACCES" {
		t.Errorf("an ordinary user connects to the keeper: %s", got[socket])
	}
	w.probe(t, &got, "socket", socket) // root inside
	if got[socket] != "ENOENT" {
		t.Errorf("a node connects to the keeper: %s", got[socket])
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm()&0o022 != 0 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// TestNodesApart checks that a node's files belong to its own ids and are closed to other nodes and to the host's users, above all
// set-user-id programs.
func TestNodesApart(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		a, b := w.up(t, ""), w.up(t, "")
		baseA, baseB := w.show(t, a).base(t), w.show(t, b).base(t)
		if baseA == baseB || baseA == 0 || baseB == 0 {
			t.Fatalf("the nodes' roots are %d and %d", baseA, baseB)
		}
		got := map[string]string{}
		if w.in(t, a, &got, "install", "/suid"); got["/suid"] != "ok" {
			t.Fatalf("a node writes to its own root: %v", got)
		}
		path := filepath.Join(w.Root, "lib/nodes", a, "delta/root/suid")
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil || st.Uid != baseA || st.Mode&unix.S_ISUID == 0 {
			t.Fatalf("%s: user %d, mode %o, %v", path, st.Uid, st.Mode, err)
		}
		for _, user := range []uint32{nobody, baseA, baseB} {
			if err := asUser(exec.Command(path, "identity"), user).Run(); err == nil {
				t.Errorf("user %d of the host runs the node's set-user-id program", user)
			}
		}
		live := filepath.Join(w.Root, "run/nodes", a) // its folder has the group of A's root
		got = map[string]string{}
		w.in(t, b, &got, "read", path, "/proc/1/root"+path, "/proc/1/cwd"+path, live, live+"/root")
		w.in(t, a, &got, "read", live, live+"/bundle/config.json", live+"/stage")
		for where, what := range got {
			if what != "ENOENT" {
				t.Errorf("a node sees %s of the host: %s", where, what)
			}
		}
	})
}

// TestRootInsideIsNotRoot checks that the node's root is an ordinary user on the host: it cannot change the owner of host files,
// nor read or signal root's processes.
func TestRootInsideIsNotRoot(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		name := w.up(t, "")
		s := w.show(t, name)
		var st unix.Stat_t
		if err := unix.Stat(fmt.Sprintf("/proc/%d", s.PID), &st); err != nil || st.Uid != s.base(t) {
			t.Errorf("process 1 is user %d outside, not %d (%v)", st.Uid, s.base(t), err)
		}
		out := w.OK(t, "exec", name, "--", "/bin/sh", "-c",
			"chmod 0666 /dev/null 2>&1; chown 0 /etc/passwd 2>&1; chmod 0777 /etc /usr 2>&1; touch /etc/berth-was-here 2>&1; true")
		for _, want := range []string{"/dev/null", "/etc/passwd", "'/etc'", "'/usr'", "berth-was-here"} {
			if !strings.Contains(out, want) {
				t.Errorf("nothing was refused of %s: %s", want, out)
			}
		}
	})
}

// TestOwnersStay checks that the caller's standard input and output, /dev/null among them, keep their owners.
func TestOwnersStay(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		file := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(file, []byte("older lines, not for the node\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		cmd := w.Command("run", "--image", "host", "--", "/bin/sh", "-c",
			"chmod 0666 /dev/stdout; exec 3>&1; dd if=/proc/1/fd/3 iflag=nonblock bs=4096 count=1 >&2; echo new line; stat -Lc %d:%i:%u /dev/stdin")
		cmd.Stdout, cmd.Stdin = f, nil // exec opens /dev/null for nil
		var errs strings.Builder
		cmd.Stderr = &errs
		if err := cmd.Run(); err != nil {
			t.Error(err)
		}
		if strings.Contains(errs.String(), "older lines") {
			t.Error("the node read what was in the file that it was to write to")
		}
		var st unix.Stat_t
		if err := unix.Stat(file, &st); err != nil || st.Uid != 0 || st.Mode&0o777 != 0o600 {
			t.Errorf("the file is user %d's with mode %o (%v)", st.Uid, st.Mode, err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var null unix.Stat_t
		if err := unix.Stat(os.DevNull, &null); err != nil {
			t.Fatal(err)
		}
		if host := fmt.Sprintf("%d:%d:0", null.Dev, null.Ino); !strings.Contains(string(text), "new line\n") || strings.Contains(string(text), host) {
			t.Errorf("the host's /dev/null (%s) is the node's: %s", host, text)
		}
	})
}

// TestLogIsNoLink checks that a log is never written through a link.
func TestLogIsNoLink(t *testing.T) {
	w := anyRuntime(t)
	name := w.up(t, "command: [/bin/echo, hello]")
	target := filepath.Join(t.TempDir(), "target")
	log := filepath.Join(w.Root, "lib/nodes", name, "log")
	if err := os.Remove(log); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, log); err != nil {
		t.Fatal(err)
	}
	w.Try("stop", name)
	if _, stderr, code := w.Try("start", name); code == 0 {
		t.Errorf("the node started on a log that is a link: %s", stderr)
	}
	if _, err := os.Lstat(target); err == nil {
		t.Error("the link's target was made")
	}
}
