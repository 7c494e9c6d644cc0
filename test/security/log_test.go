package security

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/image/imagetest"
	"berth/internal/node/nodelog"
	"berth/test/testkit"
)

// TestOutputIsNoFile checks that a node's standard output is a pipe, which it cannot enlarge, truncate or write to elsewhere than
// at its end. Any user of the node can open it again for writing.
func TestOutputIsNoFile(t *testing.T) {
	want := map[string]string{
		"fallocate": "ESPIPE", "punch": "ESPIPE", "ftruncate": "EINVAL", "pwrite": "ESPIPE", "lseek": "ESPIPE",
		"fchmod": "EPERM", "fchown": "EPERM",
		"open to read": "EACCES", "open to both": "EACCES", "open to write": "ok", "write": "ok",
		"open to read as a user": "EACCES", "open to both as a user": "EACCES", "open to write as a user": "ok", "write as a user": "ok",
	}
	eachRuntime(t, func(t *testing.T, w *world) {
		t.Run("user namespace", func(t *testing.T) {
			got := outputOf(t, w, w.up(t, "command: [/probe/probe, output]"))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
		t.Run("no user namespace", func(t *testing.T) {
			dir := imagetest.BusyboxDir(t)
			addProbe(t, dir)
			got := outputOf(t, w, w.up(t, "image: dir:"+dir+"\nuser_namespace: false\ncommand: [/probe, output]"))
			// Root inside is root outside, to which the pipe belongs: it may read it by its name too, as it may by the
			// descriptor that it has, and do to its owner and mode what it likes. Nobody else goes by them.
			root := maps.Clone(want)
			for _, what := range []string{"fchmod", "fchown", "open to read", "open to both", "open to read as a user", "open to both as a user"} {
				root[what] = "ok"
			}
			if diff := cmp.Diff(root, got); diff != "" {
				t.Error(diff)
			}
		})
	})
}

// outputOf waits until a node that runs the probe has ended, and reads the answer from its log.
func outputOf(t *testing.T, w *world, name string) (answer map[string]string) {
	t.Helper()
	text := w.OK(t, "logs", "-f", name)
	said, found := strings.CutPrefix(text, "by /dev/stdout\nby /dev/stdout as a user\ndone\n")
	if !found {
		t.Fatalf("the log is %q", text)
	}
	if err := json.Unmarshal([]byte(said), &answer); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	return answer
}

// TestLogIsCapped checks that the log of a node that writes all the time stays within its size, and that the keeper needs little CPU.
func TestLogIsCapped(t *testing.T) {
	w := anyRuntime(t)
	name := w.up(t, "command: [/bin/sh, -c, 'exec yes all work and no play']")
	dir := filepath.Join(w.Root, "lib/nodes", name)
	first, turns := uint64(0), 0
	for deadline := time.Now().Add(testkit.Bound()); turns < 2; time.Sleep(20 * time.Millisecond) {
		var sum int64
		for _, part := range []string{"log", "log.1"} {
			var st unix.Stat_t
			if unix.Stat(filepath.Join(dir, part), &st) == nil {
				sum += max(st.Size, st.Blocks*512)
				if part == "log.1" && st.Ino != first {
					first, turns = st.Ino, turns+1
				}
			}
		}
		if sum > 2*nodelog.Half+64<<10 { // one part may be measured before a rename, the other after it
			t.Fatalf("the log takes %d bytes", sum)
		}
		if time.Now().After(deadline) {
			t.Fatal("the log does not grow")
		}
	}
	if _, stderr, code := w.Try("rm", "--force", name); code != 0 {
		t.Errorf("rm: %s", stderr)
	}
	if _, err := os.Lstat(dir); err == nil {
		t.Error("rm left the node's folder")
	}
}
