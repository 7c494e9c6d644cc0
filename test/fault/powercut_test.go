package fault

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/internal/image/imagetest"
	"berth/internal/storage/scratch"
	"berth/test/loop"
	"berth/test/sample"
	"berth/test/testkit"
)

// powered is a world whose root is a file system of its own, so that its power can be cut: what was not synced is lost, and so are the
// processes and the live state.
type powered struct {
	*scene
	kind, disk string
	boots      int
	spec2      string // the spec with another limit
	site       string // the site's id
	ids        string // what is noted of the node's ids: they depend on its name
}

// newPowered makes such a world, with a pool for scratch volumes on that file system.
func newPowered(t *testing.T, kind string) *powered {
	t.Helper()
	w := newWorld(t)
	if _, err := exec.LookPath("mkfs." + kind); err != nil {
		t.Skip("needs mkfs." + kind)
	}
	p := &powered{scene: &scene{world: w}, kind: kind, disk: loop.ForTest(t, map[string]int64{"ext4": 128, "xfs": 320, "btrfs": 160}[kind]<<20)} // XFS is not made smaller than 300 MiB
	args := map[string][]string{"ext4": {"-q", "-F"}, "xfs": {"-q", "-f"}, "btrfs": {"-q", "-f"}}[kind]
	if out, err := exec.Command("mkfs."+kind, append(args, p.disk)...).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.%s: %v: %s", kind, err, out)
	}
	testkit.Must(p, os.Chmod(w.dir+"/data", 0o777))
	p.boot()
	testkit.Must(p, os.Mkdir(w.root+"/pool", 0o755))
	p.ok("pool", "add", "default", "--dir", w.root+"/pool")
	// Its program syncs a file on scratch, and says so where the power cut does not reach.
	spec := `
name: f1
image: host
command: [/bin/sh, -c, "test -s /x/kept || echo kept >/x/kept; sync /x/kept && touch /data/synced && exec sleep infinity"]
users: [{from: 100000, count: 100, as: same}, {from: 200000, count: 70000, as: private}]
memory: {max: %s}
network: [{mode: bridge}]
mounts: [{source: ` + w.dir + `/data, target: /data}]
scratch: [{target: /x, size: 16MiB}]
`
	p.spec, p.spec2 = w.file("f1.yaml", fmt.Sprintf(spec, "64MiB")), w.file("f2.yaml", fmt.Sprintf(spec, "65MiB"))
	testkit.Must(p, os.WriteFile(p.l.UsersList(), []byte("allow: [{from: 100000, count: 100}]\n"), 0o644))
	p.ok("ls")
	unix.Sync()
	return p
}

// boot mounts the root, with an empty folder of live state, and gives the host another boot id.
func (p *powered) boot() {
	p.Helper()
	p.boots++
	// The kernel may still know the file system that was shut down: of a process that is just ending.
	testkit.Must(p, p.eventually("mount the root", func() error {
		if err := unix.Mount(p.disk, p.root, p.kind, 0, ""); err != nil {
			return err
		}
		probe := filepath.Join(p.root, "probe-file")
		err := errors.Join(os.WriteFile(probe, nil, 0o600), os.Remove(probe), os.Chmod(p.root, 0o755), os.MkdirAll(p.l.Run, 0o711))
		if err != nil {
			return errors.Join(err, unix.Unmount(p.root, 0))
		}
		return nil
	}))
	testkit.Must(p, unix.Mount("tmpfs", p.l.Run, "tmpfs", 0, "mode=711"))
	p.env = []string{fmt.Sprint("BERTH_FAULT_BOOT=boot-", p.boots)}
}

// eventually calls f until it returns no error.
func (p *powered) eventually(what string, f func() error) (err error) {
	if testkit.Happens(func() bool { err = f(); return err == nil }) {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// cut cuts the power, and switches it on again.
func (p *powered) cut() {
	p.Helper()
	restore := p.lose()
	testkit.Must(p, p.eventually("end what runs", func() error {
		if n := p.killAll(); n > 0 {
			return fmt.Errorf("%d processes", n)
		}
		for _, d := range p.cgroupDirs() {
			_ = unix.Rmdir(d)
		}
		if left := p.cgroupDirs(); len(left) > 0 {
			return fmt.Errorf("groups %v", left)
		}
		for _, m := range slices.Backward(p.mountinfo()) {
			if at := m.at; at == p.root || strings.HasPrefix(at, p.root+"/") {
				if err := unix.Unmount(at, 0); err != nil {
					return fmt.Errorf("unmount %s: %w", at, err)
				}
			}
		}
		return nil
	}))
	restore()
	p.boot()
}

// lose sees to it that what was not synced is lost. restore is called when nothing has the file system mounted any more.
func (p *powered) lose() (restore func()) {
	p.Helper()
	if p.kind == "btrfs" {
		return p.copied()
	}
	root, err := os.Open(p.root)
	testkit.Must(p, err)
	defer root.Close()
	const (
		shutdown   = 0x8004587d // EXT4_IOC_SHUTDOWN, which is XFS_IOC_GOINGDOWN
		noLogFlush = 2          // nothing more is written: neither data nor the file system's own journal
	)
	how := uint32(noLogFlush)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, root.Fd(), shutdown, uintptr(unsafe.Pointer(&how))); errno != 0 {
		p.Fatalf("shut the file system down: %v", errno)
	}
	return func() {}
}

// copied is lose for a file system that cannot be shut down: what its disk has now is copied while its processes are stopped, and
// restored. Blocks that are equal when they are read again were so at one moment in between.
func (p *powered) copied() (restore func()) {
	p.Helper()
	for _, one := range p.processes() {
		_ = unix.Kill(one.pid, unix.SIGSTOP)
	}
	back, err := os.ReadFile("/sys/block/" + filepath.Base(p.disk) + "/loop/backing_file")
	testkit.Must(p, err)
	from, to := strings.TrimSpace(string(back)), p.dir+"/disk"
	testkit.Must(p, p.eventually("copy the disk", func() error {
		return exec.Command("sh", "-c", `cp --sparse=always "$0" "$1" && cmp -s "$0" "$1"`, from, to).Run()
	}))
	return func() {
		if out, err := exec.Command("sh", "-c", `fallocate --punch-hole --length $(stat -c %s "$0") "$0" && dd if="$1" of="$0" bs=64K conv=notrunc,sparse && rm "$1" && blockdev --flushbufs "$2"`, from, to, p.disk).CombinedOutput(); err != nil {
			p.Fatalf("restore the disk: %v: %s", err, out)
		}
	}
}

// whole checks after a power cut that each record can be read, that the commands work, and that what a program had synced is there.
// wanted is whether there must be a node: "yes", "no" or "perhaps". It returns whether there is one, which runs then.
func (p *powered) whole(what, wanted string) bool {
	p.Helper()
	for _, pattern := range []string{"nodes/*/spec.json", "nodes/*/journal", "scratch/*.json", "images/records/*.json", "site-id"} {
		files, err := filepath.Glob(filepath.Join(p.l.Lib, pattern))
		testkit.Must(p, err)
		for _, f := range files {
			text, err := os.ReadFile(f)
			testkit.Must(p, err)
			first, _, whole := strings.Cut(string(text), "\n")
			if strings.HasSuffix(pattern, "journal") && len(text) == 0 {
				if entries, _ := os.ReadDir(filepath.Dir(f)); len(entries) > 1 {
					p.Errorf("%s: %s is empty beside %v", what, f, entries)
				}
				continue
			}
			if !whole || first == "" || strings.ContainsRune(first, 0) {
				p.Errorf("%s: %s is cut: %.100q", what, f, text)
			}
		}
	}
	if id, _ := os.ReadFile(p.l.SiteID()); p.site != "" && string(id) != p.site {
		p.Errorf("%s: the site's id was %q and is %q", what, p.site, id)
	}
	ran := p.there(p.dir + "/data/synced")
	for _, args := range [][]string{{"ls"}, {"pool", "ls"}, {"image", "ls"}, {"repair"}, {"repair"}} {
		if r := p.berth(args...); r.code != 0 {
			p.Fatalf("%s: then %v: exit %d: %s", what, args, r.code, r)
		}
	}
	node := p.status("f1").State != ""
	switch {
	case node && wanted == "no":
		p.Fatalf("%s: the node is there again", what)
	case !node && (wanted == "yes" || wanted == "perhaps" && ran):
		p.Fatalf("%s: the node is gone; its program had synced a file: %v", what, ran)
	case !node:
		if left, _ := filepath.Glob(p.root + "/pool/berth-*/f1.*"); len(left) > 0 {
			p.Fatalf("%s: volumes without a node: %v", what, left)
		}
		if left := p.noted(); left != "" {
			p.Fatalf("%s: ids without a node: %s", what, left)
		}
		return false
	}
	if now := p.noted(); p.ids == "" {
		p.ids = now
	} else if now != p.ids {
		p.Fatalf("%s: of the node's ids was noted\n%s, now\n%s", what, p.ids, now)
	}
	kept := p.synced(what)
	if ran && kept != "kept\n" {
		p.Fatalf("%s: the program's synced file has %q", what, kept)
	}
	for _, args := range [][]string{{"show", "f1"}, {"start", "f1"}} {
		if r := p.berth(args...); r.code != 0 {
			p.Fatalf("%s: then %v: exit %d: %s", what, args, r.code, r)
		}
	}
	return true
}

// noted lists the notes of nodes' ids.
func (p *powered) noted() string {
	p.Helper()
	entries, err := os.ReadDir(p.l.IDs())
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	testkit.Must(p, err)
	var all strings.Builder
	for _, e := range entries {
		owner, _ := os.Readlink(filepath.Join(p.l.IDs(), e.Name())) // "" for what is no link
		fmt.Fprintln(&all, e.Name(), owner)
	}
	return all.String()
}

// synced reads the file on the node's volume, while no node has that mounted.
func (p *powered) synced(what string) string {
	p.Helper()
	files, err := filepath.Glob(p.root + "/pool/berth-*/f1.*")
	testkit.Must(p, err)
	if len(files) != 1 {
		p.Fatalf("%s: the node's volumes are %v", what, files)
	}
	at := p.dir + "/look"
	testkit.Must(p, os.MkdirAll(at, 0o755))
	if out, err := exec.Command("mount", "-o", "loop", files[0], at).CombinedOutput(); err != nil {
		p.Fatalf("%s: mount the volume: %v: %s", what, err, out)
	}
	text, _ := os.ReadFile(at + "/kept")
	testkit.Must(p, p.eventually("unmount the volume", func() error { return unix.Unmount(at, 0) }))
	return string(text)
}

func (p *powered) there(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// remove removes the node, if there is one, and forgets that it ran.
func (p *powered) remove() {
	p.Helper()
	p.ok("rm", "--force", "f1")
	_ = os.Remove(p.dir + "/data/synced")
}

// ready waits until the node's program has synced its file.
func (p *powered) ready() {
	p.Helper()
	testkit.Eventually(p, "the node's program has synced its file", func() bool { return p.there(p.dir + "/data/synced") })
}

// steps cuts the power at those fault points of a command that this run takes, and after its end. f gets what happened, and whether
// the command had ended; before each, prepare makes what the command needs.
func (p *powered) steps(prepare func(), f func(what string, ended bool), args ...string) {
	p.Helper()
	n, stride := sample.Of(p).Sparse().Sparse().Points(1) // a cut takes most of a second
	for ended := false; !ended; n += stride {
		prepare()
		what, killed := p.point(n, args...)
		ended = !killed
		p.cut()
		f(p.kind+": power cut after "+what, ended)
	}
}

func TestPowerCutAtEachStep(t *testing.T) {
	for _, kind := range sample.Some(sample.Of(t), 1, "ext4", "xfs", "btrfs") {
		t.Run(kind, func(t *testing.T) {
			p := newPowered(t, kind)
			there := func(ended bool) string {
				if ended {
					return "yes"
				}
				return "perhaps"
			}
			nothing := func() {}
			p.steps(nothing, func(what string, ended bool) {
				if p.whole(what, there(ended)) {
					p.remove()
				}
			}, "apply", "-f", p.spec)

			node := func() {
				if p.status("f1").State == "" {
					p.ok("apply", "-f", p.spec)
					p.ready()
					id, err := os.ReadFile(p.l.SiteID())
					testkit.Must(p, err)
					p.site = string(id)
				}
			}
			limit := func(what string, allowed ...string) {
				for _, text := range allowed {
					if strings.Contains(p.ok("show", "--json", "f1").out, text) {
						return
					}
				}
				p.Fatalf("%s: the node has none of the limits %v", what, allowed)
			}
			p.steps(func() { node(); p.ok("apply", "-f", p.spec) }, func(what string, ended bool) {
				p.whole(what, "yes")
				if limit(what, "65MiB", "64MiB"); ended {
					limit(what, "65MiB")
				}
			}, "set", "f1", "memory.max=65MiB")
			p.steps(node, func(what string, _ bool) { p.whole(what, "yes") }, "restart", "--grace", "0s", "f1")
			p.steps(node, func(what string, ended bool) {
				if ended {
					_ = os.Remove(p.dir + "/data/synced")
					p.whole(what, "no")
				} else if removing := p.removing(); removing {
					_ = os.Remove(p.dir + "/data/synced")
					p.whole(what, "no")
				} else {
					p.whole(what, "yes")
				}
			}, "rm", "--force", "f1")
			p.steps(func() { _ = p.berth("pool", "rm", "second") }, func(what string, ended bool) {
				p.whole(what, "no")
				if _, err := (scratch.Pools{Dir: p.l.Scratch()}).Get("second"); err != nil && ended {
					p.Fatalf("%s: %v", what, err)
				}
			}, "pool", "add", "second", "--dir", p.root+"/pool")
			p.steps(func() { _ = p.berth("pool", "add", "second", "--dir", p.root+"/pool") }, func(what string, ended bool) {
				p.whole(what, "no")
				if there, err := (scratch.Pools{Dir: p.l.Scratch()}).Get("second"); err == nil && ended {
					p.Fatalf("%s: there is again %v", what, there)
				}
			}, "pool", "rm", "second")
			archive := imagetest.Busybox(t)
			p.steps(func() { _ = p.berth("image", "rm", "bb") }, func(what string, ended bool) {
				p.whole(what, "no")
				if out := p.ok("image", "ls").out; strings.Contains(out, "broken") || ended && !strings.Contains(out, "bb") {
					p.Fatalf("%s: the images are %s", what, out)
				}
			}, "image", "import", archive, "bb")
		})
	}
}

// removing reports whether the disk has that the node is being removed, or nothing of it.
func (p *powered) removing() bool {
	text, err := os.ReadFile(p.l.Node("f1").Claims())
	return errors.Is(err, os.ErrNotExist) || strings.Contains(string(text), `"phase":"removing"`)
}
