package mounts

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
	"berth/internal/sys/thread"
	"berth/test/testkit"
)

var testIDs = IDs{Base: 0x41230000, Size: 65536}

// TestMain is also the process that TestNothingLeftAfterKill kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv("BERTH_TEST_ENTER"); dir != "" {
		fmt.Println(thread.Own(func() error {
			if err := plan(dir).Enter(context.Background()); err != nil {
				return err
			}
			fmt.Println("entered")
			select {}
		}))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// newTree makes a folder with an image of two layers, a delta and mount points, which the node's ids can reach.
func newTree(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-mounts-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, sub := range []string{"top", "bottom/etc", "delta/upper", "delta/work", "stage", "data"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir, "top/name", "top")
	write(t, dir, "bottom/name", "bottom")
	write(t, dir, "bottom/etc/secret", "for root only")
	write(t, dir, "data/file", "data")
	for path, mode := range map[string]os.FileMode{".": 0o711, "bottom/etc/secret": 0o600} {
		if err := os.Chmod(filepath.Join(dir, path), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(filepath.Join(dir, "delta/upper"), int(testIDs.Base), int(testIDs.Base)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// plan is a node's plan over newTree.
func plan(dir string) *Plan {
	in := func(s string) string { return filepath.Join(dir, s) }
	return &Plan{
		Dir:  in("stage"),
		Root: Root{At: in("stage/root"), Lower: []string{in("top"), in("bottom")}, Upper: in("delta/upper"), Work: in("delta/work")},
		IDs:  testIDs,
	}
}

// enter carries out the plan on its own thread and runs a shell script in the node's root, as root of a user namespace
// with the plan's ids (as the host's root if it has none).
func enter(t *testing.T, p *Plan, script string) (string, error) {
	t.Helper()
	var out []byte
	err := thread.Own(func() (err error) {
		if err := p.Enter(context.Background()); err != nil {
			return err
		}
		cmd := exec.Command("/bin/sh", "-ec", script)
		cmd.Dir = p.Root.At
		if !p.IDs.None() {
			ids := []syscall.SysProcIDMap{{HostID: int(p.IDs.Base), Size: int(p.IDs.Size)}}
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids,
				GidMappingsEnableSetgroups: true, Credential: &syscall.Credential{},
			}
		}
		if out, err = cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	noMounts(t, p.Dir)
	return strings.TrimSpace(string(out)), err
}

// noMounts fails the test if the host's mount namespace has a mount below dir.
func noMounts(t *testing.T, dir string) {
	t.Helper()
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(info), filepath.Dir(dir)) {
		t.Errorf("the host sees a mount of the node:\n%s", info)
	}
}

func TestRoot(t *testing.T) {
	testkit.NeedsRoot(t)
	script := `id -u; cat name; echo; stat -c '%u:%g %a' name etc/secret .; cat etc/secret; echo; echo mine >new; chown 5:6 new; rm name; ls -A`
	want := "0\ntop\n0:0 644\n0:0 600\n0:0 755\nfor root only\netc\nnew"
	for _, c := range []struct {
		name   string
		change func(*Plan)
		owner  [2]uint32
	}{
		{"disk", func(*Plan) {}, [2]uint32{testIDs.Base + 5, testIDs.Base + 6}},
		{"memory", func(p *Plan) { p.Root.Upper, p.Root.Work, p.Root.Memory, p.Root.Size = "", "", true, 1<<20 }, [2]uint32{}},
		{"no user namespace", func(p *Plan) { p.IDs = IDs{} }, [2]uint32{5, 6}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := newTree(t)
			p := plan(dir)
			c.change(p)
			if p.IDs.None() {
				if err := os.Chown(p.Root.Upper, 0, 0); err != nil {
					t.Fatal(err)
				}
			}
			got, err := enter(t, p, script)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("in the node (-want +got):\n%s", diff)
			}
			if p.Root.Memory {
				return
			}
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(p.Root.Upper, "new"), &st); err != nil {
				t.Fatal(err)
			}
			if got := [2]uint32{st.Uid, st.Gid}; got != c.owner {
				t.Errorf("new file on disk belongs to %v, want %v", got, c.owner)
			}
		})
	}
}

// TestVolatile: only a delta that ends with its node is mounted without syncs.
func TestVolatile(t *testing.T) {
	testkit.NeedsRoot(t)
	for _, volatile := range []bool{false, true} {
		p := plan(newTree(t))
		p.Root.Volatile = volatile
		got, err := enter(t, p, `echo mine >new; cat new; grep " $PWD overlay " /proc/mounts`)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(got, "mine\n") || strings.Contains(got, "volatile") != volatile {
			t.Errorf("volatile %v: %s", volatile, got)
		}
	}
}

func TestMemoryIsLimited(t *testing.T) {
	testkit.NeedsRoot(t)
	p := plan(newTree(t))
	p.Root.Upper, p.Root.Work, p.Root.Memory, p.Root.Size = "", "", true, 1<<20
	_, err := enter(t, p, "head -c 2000000 /dev/zero >big")
	if err == nil || !strings.Contains(err.Error(), "No space left") {
		t.Errorf("2 MB in a delta of 1 MiB: %v", err)
	}
}

func TestPlainRoot(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := newTree(t)
	p := &Plan{Dir: filepath.Join(dir, "stage"), Root: Root{At: filepath.Join(dir, "top"), Plain: filepath.Join(dir, "bottom")}, IDs: testIDs}
	got, err := enter(t, p, "cat name; stat -c %u name")
	if err != nil || got != "bottom65534" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestManyLayers(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := newTree(t)
	p := plan(dir)
	for i := range 300 {
		layer := filepath.Join(dir, "layers", fmt.Sprint(i))
		if err := os.MkdirAll(layer, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, layer, fmt.Sprint("f", i), "")
		p.Root.Lower = append(p.Root.Lower, layer)
	}
	if got, err := enter(t, p, "ls | wc -l"); err != nil || got != "302" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestStage(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := newTree(t)
	p := plan(dir)
	at := func(s string) string { return filepath.Join(p.Dir, "s", s) }
	src := filepath.Join(dir, "data")
	p.Stage = []Stage{
		{At: at("mapped"), Source: src, Idmap: true, Recursive: true},
		{At: at("identity"), Source: src},
		{At: at("ro"), Source: src, Idmap: true, ReadOnly: true},
		{At: at("file"), Source: filepath.Join(src, "file"), Idmap: true},
		{At: at("null"), Device: &DeviceNode{Type: "c", Major: 1, Minor: 3}},
	}
	got, err := enter(t, p, `cd ../s; stat -c %u mapped/file identity/file file; echo x >mapped/new; echo y >file
		echo 2>/dev/null z >ro/new || echo ro; echo 2>/dev/null z >identity/new || echo denied; stat -c '%u %a %t:%T' null; echo hello >null; cat null`)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("0\n65534\n0\nro\ndenied\n0 660 1:3", got); diff != "" {
		t.Errorf("in the node (-want +got):\n%s", diff)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(src, "new"), &st); err != nil || st.Uid != 0 {
		t.Errorf("what the node's root wrote belongs to %d on the host, %v; want 0", st.Uid, err)
	}
}

func TestRefused(t *testing.T) {
	testkit.NeedsRoot(t)
	for _, c := range []struct {
		name   string
		change func(dir string, p *Plan)
		kind   refuse.Kind
		text   string
	}{
		{"layer gone", func(dir string, p *Plan) { p.Root.Lower[1] = dir + "/gone" }, refuse.NotFound, "/gone"},
		{"layer cannot be idmapped", func(_ string, p *Plan) { p.Root.Lower[0] = "/proc" }, refuse.Cannot, "file system proc of /proc"},
		{"source gone", func(dir string, p *Plan) {
			p.Stage = []Stage{{At: p.Dir + "/x", Source: dir + "/gone"}}
		}, refuse.NotFound, "/gone"},
		{"source became a link", func(dir string, p *Plan) {
			_ = os.Symlink("/etc", dir+"/link")
			p.Stage = []Stage{{At: p.Dir + "/x", Source: dir + "/link/passwd"}}
		}, refuse.Invalid, "symbolic link"},
		{"a mount beneath cannot be idmapped", func(_ string, p *Plan) {
			p.Stage = []Stage{{At: p.Dir + "/x", Source: "/", Idmap: true, Recursive: true}}
		}, refuse.Cannot, "cannot be idmapped"},
		{"upper on proc", func(_ string, p *Plan) { p.Root.Upper, p.Root.Work = "/proc/sys", "/proc/fs" }, refuse.Failed, "mount the overlay"},
		{"at outside", func(_ string, p *Plan) { p.Stage = []Stage{{At: "/x", Source: "/etc"}} }, refuse.Invalid, "not below"},
		{"at climbs", func(_ string, p *Plan) { p.Stage = []Stage{{At: p.Dir + "/../x", Source: "/etc"}} }, refuse.Invalid, "not below"},
		{"no layers", func(_ string, p *Plan) { p.Root.Lower = nil }, refuse.Invalid, "no layers"},
		{"too many layers", func(_ string, p *Plan) { p.Root.Lower = make([]string, MaxLayers+1) }, refuse.Cannot, "501 layers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := newTree(t)
			p := plan(dir)
			c.change(dir, p)
			_, err := enter(t, p, "true")
			if refuse.KindOf(err) != c.kind || err == nil || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v (kind %d), want kind %d with %q", err, refuse.KindOf(err), c.kind, c.text)
			}
		})
	}
}

// Overlay over an idmapped upper folder comes up read-only without an error.
func TestReadOnlyRootIsNoticed(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := newTree(t)
	err := thread.Own(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		userns, err := UserNS(testIDs)
		if err != nil {
			return err
		}
		defer userns.Close()
		if err := bind(dir+"/delta", dir+"/delta", 0, userns); err != nil {
			return err
		}
		return plan(dir).Enter(context.Background())
	})
	if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("got %v", err)
	}
}

func TestHide(t *testing.T) {
	testkit.NeedsRoot(t)
	info, err := mountOf("/dev/shm")
	if err != nil || info.Mountpoint != "/dev/shm" {
		t.Skip("needs a mount at /dev/shm to hide")
	}
	p := plan(newTree(t))
	p.Hide = []string{"/dev/shm", "/nowhere", "/etc"}
	if got, err := enter(t, p, "! grep ' /dev/shm ' /proc/self/mountinfo"); err != nil {
		t.Errorf("the node's side still sees it: %s, %v", got, err)
	}
	if info, err := mountOf("/dev/shm"); err != nil || info.Mountpoint != "/dev/shm" {
		t.Errorf("the host lost /dev/shm: %v", err)
	}
}

func TestNothingLeftAfterKill(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := newTree(t)
	cmd := testkit.Again(t, "", "BERTH_TEST_ENTER="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if line != "entered\n" {
		t.Fatalf("child said %q, %v", line, err)
	}
	noMounts(t, dir+"/stage")
	if err := os.RemoveAll(dir); err != nil {
		t.Errorf("something holds the folder: %v", err)
	}
}

func TestUserNS(t *testing.T) {
	testkit.NeedsRoot(t)
	start := time.Now()
	const n = 20
	for range n {
		ns, err := UserNS(testIDs)
		if err != nil {
			t.Fatal(err)
		}
		if err := ns.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("one user namespace takes %v", time.Since(start)/n)
	// All children were reaped.
	if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err == nil {
		t.Errorf("child %d is left", pid)
	}
}

func TestCanIdmap(t *testing.T) {
	testkit.NeedsRoot(t)
	if err := CanIdmap(newTree(t), true); err != nil {
		t.Error(err)
	}
	if err := CanIdmap("/proc", false); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("proc: %v", err)
	}
}

// TestSaid: what the kernel says of a mount that it refuses is in the error.
func TestSaid(t *testing.T) {
	testkit.NeedsRoot(t)
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	testkit.Must(t, err)
	defer unix.Close(fs)
	if text := said(fs); text != "" {
		t.Errorf("before anything was asked for: %q", text)
	}
	if err := unix.FsconfigSetString(fs, "size", "much"); err == nil {
		t.Fatal("a size that is no number is taken")
	}
	if text := said(fs); !strings.HasPrefix(text, " (tmpfs: ") || !strings.Contains(text, "'size'") {
		t.Errorf("the kernel says %q", text)
	}
}
