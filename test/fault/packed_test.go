package fault

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/image/imagetest"
	"berth/test/testkit"
)

// packed is a node whose image is one file.
var packed = node{"packed", func(w *world) string {
	return "name: f1\nimage: file:" + w.packed() + "\ncommand: [/bin/sleep, infinity]\nmemory: {max: 64MiB}\n"
}}

// packed packs an image and returns its file.
func (w *world) packed() string {
	w.Helper()
	if _, err := exec.LookPath("mkfs.erofs"); err != nil {
		w.Skip("no mkfs.erofs: install Debian's package erofs-utils")
	}
	w.ok("image", "import", imagetest.Busybox(w.T), "bb")
	file := filepath.Join(w.dir, "x.erofs")
	w.ok("image", "pack", "bb", "-o", file)
	return file
}

// TestPackedNodeKilledAtEachStep kills the commands that start and remove a node with a packed image. The node's mount and
// its loop device go with it, whichever process made them.
func TestPackedNodeKilledAtEachStep(t *testing.T) {
	s := newScene(t, packed)
	s.steps(func(n int) bool {
		what, killed := s.point(n, "apply", "-f", s.spec)
		if killed {
			s.repaired(what, "none", "up")
		}
		s.works(what)
		return killed
	})
	file := filepath.Join(s.dir, "x.erofs")
	s.steps(func(n int) bool {
		what, killed := s.point(n, "run", "--name", "f1", "--image", "file:"+file, "--", "/bin/true")
		s.repaired(what, "none")
		return killed
	})
}

// TestPackedFileRemovedAtEachStep takes the file away while an apply waits at a fault point: it fails and leaves nothing, or
// works if the node has mounted it.
func TestPackedFileRemovedAtEachStep(t *testing.T) {
	s := newScene(t, packed)
	file := filepath.Join(s.dir, "x.erofs")
	s.takenAtEachStep(func() { testkit.Must(s, os.Rename(file, file+".gone")) }, func() { testkit.Must(s, os.Rename(file+".gone", file)) })
}

// TestPackKilledAtEachStep kills image pack, trust and rm: afterwards the image is there and can be used, or nothing is.
func TestPackKilledAtEachStep(t *testing.T) {
	w := newWorld(t)
	file := w.packed()
	foreign := filepath.Join(w.dir, "foreign.erofs")
	testkit.Must(w, os.Mkdir(filepath.Join(w.dir, "tree"), 0o755))
	w.file("tree/hello", "hello")
	if out, err := exec.Command("mkfs.erofs", "--quiet", foreign, filepath.Join(w.dir, "tree")).CombinedOutput(); err != nil {
		w.Fatalf("%v: %s", err, out)
	}
	s := &scene{world: w, states: map[string]snapshot{"packed": w.snapshot()}}
	w.ok("image", "rm", "file:"+file)
	s.states["none"] = w.snapshot()
	w.ok("image", "trust", foreign)
	s.states["trusted"] = w.snapshot()
	w.ok("image", "rm", "file:"+foreign)
	s.settled("rm of a trusted file", s.states, "none")
	testkit.Must(w, os.Remove(file))
	for _, c := range []struct {
		args    []string
		file    string
		with    string // the state in which the image is there
		prepare []string
	}{
		{[]string{"image", "pack", "bb", "-o", file}, file, "packed", nil},
		{[]string{"image", "trust", foreign}, foreign, "trusted", nil},
		{[]string{"image", "rm", "file:" + file}, file, "packed", []string{"image", "pack", "bb", "-o", file}},
		{[]string{"image", "rm", "file:" + foreign}, foreign, "trusted", []string{"image", "trust", foreign}},
	} {
		s.steps(func(n int) bool {
			if c.prepare != nil {
				s.ok(c.prepare...)
			}
			what, killed := s.point(n, c.args...)
			s.ok("repair")
			state := s.settled(what, s.states, "none", c.with)
			if list := s.ok("image", "ls").out; strings.Contains(list, c.file) != (state == c.with) {
				s.Fatalf("%s: image ls: %s", what, list)
			}
			_, err := os.Stat(c.file)
			if c.args[1] == "pack" && (err == nil) != (state == c.with) {
				s.Fatalf("%s: the host is %s, and the file: %v", what, state, err)
			}
			if state == c.with {
				if c.with == "packed" {
					s.ok("run", "--image", "file:"+c.file, "--", "/bin/true")
				} else if r := s.berth("run", "--image", "file:"+c.file, "--", "/nothing"); r.code != 127 {
					s.Fatalf("%s: run: exit %d: %s", what, r.code, r)
				}
				s.ok("image", "rm", "file:"+c.file)
			}
			if c.with == "packed" {
				_ = os.Remove(c.file)
			}
			s.settled(what+"\nthen rm", s.states, "none")
			return killed
		})
	}
}
