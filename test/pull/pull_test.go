package pull

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/image/imagetest"
	"berth/test/testkit"
)

// overhead is the most bytes that the registry sends beside layers for one pull: headers, the manifest, the configuration.
const overhead = 16 << 10

// TestPull pulls, runs, prunes and removes.
func TestPull(t *testing.T) {
	r := newRig(t)
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Skip("needs busybox-static")
	}
	root := imagetest.Layer(t, imagetest.Entry{Name: "bin/", Type: '5'}, imagetest.Entry{Name: "bin/busybox", Data: string(busybox), Mode: 0o755})
	img := r.push("team/app:1", root, noise(t, 1, 100_000))
	digest, err := img.Digest()
	testkit.Must(r, err)
	ref := r.ref("team/app:1")
	r.ends(4, "has no", "image", "pull", r.ref("team/app:2"))
	r.ends(2, "docker.io/library/debian:12", "image", "pull", "debian:12")
	r.ends(0, ref+": 2 layers", "image", "pull", ref)
	if out := r.ends(0, ref, "image", "ls"); !strings.Contains(out, digest.Hex[:12]) {
		t.Errorf("the digest is not shown:\n%s", out)
	}
	if kept := r.kept(); kept != 0 {
		t.Errorf("%d bytes of blobs are left", kept)
	}
	r.wire.restart(0, 0)
	r.ends(0, "2 layers", "image", "pull", ref, "--name", "app")
	if sent := r.wire.sent.Load(); sent > overhead {
		t.Errorf("the registry sent %d bytes of an image that is there", sent)
	}
	r.ends(0, "hello from the registry", "run", "--image", "oci:app")
	r.wire.restart(0, 0)
	r.ends(0, "hello from the registry", "run", "--image", "docker://"+ref) // it is there: not asked for again
	if sent := r.wire.sent.Load(); sent > 0 {
		t.Errorf("the registry sent %d bytes for a run of a stored image", sent)
	}
	r.ends(0, "removed", "image", "rm", "app", ref)
	r.ends(0, "hello from the registry", "run", "--image", "docker://"+ref)
	r.ends(0, "removed", "image", "rm", ref)

	archive := filepath.Join(r.Dir(), "app.tar")
	testkit.Must(r, os.WriteFile(archive, root, 0o644))
	r.ends(0, "from a tar", "run", "--image", "tar:"+archive, "--", "/bin/busybox", "echo", "from a tar")
	var all []struct{ Name, Imported, From string }
	read := func() { testkit.Must(r, json.Unmarshal([]byte(r.ends(0, "tar-", "image", "ls", "--json")), &all)) }
	read()
	first := all[0]
	r.ends(0, "again", "run", "--image", "tar:"+archive, "--", "/bin/busybox", "echo", "again")
	if read(); len(all) != 1 || all[0] != first || !strings.HasPrefix(first.From, archive+"@sha256:") {
		t.Errorf("the archive was imported again: %+v, %+v", first, all)
	}
	testkit.Must(r, os.WriteFile(archive, slices.Concat(root, make([]byte, 512)), 0o644))
	r.ends(0, "changed", "run", "--image", "tar:"+archive, "--", "/bin/busybox", "echo", "changed")
	if read(); len(all) != 2 {
		t.Errorf("a changed archive is another image: %+v", all)
	}
	r.ends(125, "there is no archive", "run", "--image", "tar:"+archive+"x", "--", "true")
	r.ends(125, "berth image pull registry.example/app:1", "run", "--image", "registry.example/app:1")
}

// TestPullBreaks ends the registry in the middle of a pull. No image is listed. The next pull fetches what is missing.
func TestPullBreaks(t *testing.T) {
	r := newRig(t)
	img := r.push("app:1", noise(t, 1, 3<<20), noise(t, 2, 2<<20))
	r.push("large:1", noise(t, 3, 32<<20)) // more than the kernel keeps of a connection whose sender was killed
	size := r.size(img)
	served := int64(0)
	for _, part := range []int64{1 << 20, 1 << 20, 1 << 20} {
		r.wire.restart(part, 0)
		r.ends(1, "the same command goes on from there", "image", "pull", r.ref("app:1"), "--name", "app")
		served += r.wire.sent.Load()
		r.nothing()
	}
	kept := r.kept()
	if kept < served/3 || kept > size { // what a connection's buffer still held when it was reset is lost
		t.Errorf("%d bytes are kept of %d that the registry sent", kept, served)
	}
	r.wire.restart(0, 0)
	r.ends(0, "2 layers", "image", "pull", r.ref("app:1"), "--name", "app")
	if sent := r.wire.sent.Load(); sent < size-kept || sent > size-kept+overhead {
		t.Errorf("the registry sent %d bytes, missing were %d", sent, size-kept)
	}
	r.ends(0, "removed", "image", "rm", "app")

	r.wire.restart(0, 1<<20)
	cmd := r.Command("image", "pull", r.ref("large:1"), "--name", "app")
	var said strings.Builder
	cmd.Stderr = &said
	testkit.Must(r, cmd.Start())
	<-r.wire.full
	r.stop() // kills the registry's process
	r.wire.goOn()
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(said.String(), "the same command goes on from there") {
		t.Errorf("the pull ended with %v: %s", err, &said)
	}
	r.nothing()
	r.ends(1, "cannot be reached", "image", "pull", r.ref("app:1"))
	r.ends(0, "removed", "image", "prune")
	if kept := r.kept(); kept != 0 {
		t.Errorf("%d bytes are left", kept)
	}
}

// TestPullKilled kills berth, or its puller, with SIGKILL at random points of a pull. No half image is listed, and the
// next pull ends well, without fetching again what was there.
func TestPullKilled(t *testing.T) {
	r := newRig(t)
	img := r.push("app:1", noise(t, 1, 2<<20), noise(t, 2, 1<<20))
	size := r.size(img)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range 8 {
		at := 1 + random.Int64N(size+overhead)
		r.wire.restart(0, at)
		cmd := r.Command("image", "pull", r.ref("app:1"), "--name", "app")
		testkit.Must(r, cmd.Start())
		ended := make(chan struct{})
		go func() {
			_ = cmd.Wait()
			close(ended)
		}()
		select {
		case <-r.wire.full:
		case <-ended: // nothing was held back
		}
		if round%2 == 0 {
			_ = cmd.Process.Kill()
		} else if child := puller(cmd.Process.Pid); child > 0 {
			_ = unix.Kill(child, unix.SIGKILL)
		} else {
			_ = cmd.Process.Kill()
		}
		<-ended
		if code, out := r.run("image", "ls", "--json"); code != 0 || strings.Contains(out, "broken") {
			t.Fatalf("killed at %d bytes: %d, %s", at, code, out)
		} else if strings.TrimSpace(out) != "[]" {
			r.ends(0, "removed", "image", "rm", "app") // all had come
			continue
		}
		kept := r.kept()
		r.wire.restart(0, 0)
		r.ends(0, "2 layers", "image", "pull", r.ref("app:1"), "--name", "app")
		if sent := r.wire.sent.Load(); sent > max(size-kept, 0)+overhead {
			t.Errorf("killed at %d bytes: %d were kept of %d, and the registry sent %d", at, kept, size, sent)
		}
		r.ends(0, "removed", "image", "rm", "app")
		r.ends(0, "", "repair")
		if left := r.kept(); left != 0 {
			t.Errorf("%d bytes are left", left)
		}
	}
}

// puller returns the pid of berth-pull that a berth started, 0 if it has none.
func puller(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		more, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, task.Name()))
		text = append(text, more...)
	}
	child := 0
	_, _ = fmt.Sscan(string(text), &child)
	return child
}

// TestPullAtOnce pulls one image four times at once: each pull ends well, and the layers come once.
func TestPullAtOnce(t *testing.T) {
	r := newRig(t)
	img := r.push("app:1", noise(t, 1, 4<<20), noise(t, 2, 1<<20))
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			out, err := r.Command("image", "pull", r.ref("app:1"), "--name", fmt.Sprint("app", i)).CombinedOutput()
			if err != nil {
				t.Errorf("pull %d: %v: %s", i, err, out)
			}
		})
	}
	group.Wait()
	if sent, most := r.wire.sent.Load(), r.size(img)+4*overhead; sent > most {
		t.Errorf("the registry sent %d bytes, the layers have %d", sent, r.size(img))
	}
	r.ends(0, "app3", "image", "ls")
}

// TestPullFullDisk pulls onto a file system that is too small: refused before a byte is fetched, or when it is full, with
// exit code 3. Nothing is listed.
func TestPullFullDisk(t *testing.T) {
	r := newRig(t)
	img := r.push("app:1", noise(t, 1, 3<<20))
	for _, c := range []struct{ size, words string }{{"2m", "it needs 4 MiB"}, {"5m", "needs"}} {
		disk := filepath.Join(r.Dir(), "disk"+c.size)
		testkit.Must(r, os.Mkdir(disk, 0o755))
		if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "mode=755,size="+c.size, "tmpfs", disk).CombinedOutput(); err != nil {
			t.Fatalf("mount: %s", out)
		}
		t.Cleanup(func() { _ = unix.Unmount(disk, 0) })
		r.Root = filepath.Join(disk, "root")
		r.wire.restart(0, 0)
		r.ends(3, c.words, "image", "pull", r.ref("app:1"), "--name", "app")
		r.nothing()
		if sent := r.wire.sent.Load(); c.size == "2m" && sent > overhead {
			t.Errorf("%d bytes were fetched for nothing", sent)
		}
		r.ends(0, "removed", "image", "prune")
	}
	r.wire.restart(0, 1<<20) // the disk fills up in the middle of the pull
	disk := filepath.Dir(r.Root)
	testkit.Must(r, exec.Command("mount", "-o", "remount,size=20m", disk).Run())
	cmd := r.Command("image", "pull", r.ref("app:1"), "--name", "app")
	var said strings.Builder
	cmd.Stderr = &said
	testkit.Must(r, cmd.Start())
	<-r.wire.full
	filler := filepath.Join(disk, "filler")
	if out, err := exec.Command("dd", "if=/dev/zero", "of="+filler, "bs=64k").CombinedOutput(); err == nil {
		t.Errorf("the disk is not full: %s", out)
	}
	r.wire.goOn()
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 3 || !strings.Contains(said.String(), "is full") {
		t.Errorf("the pull ended with %v: %s", err, &said)
	}
	r.nothing()
	testkit.Must(r, os.Remove(filler))
	kept := r.kept()
	r.wire.restart(0, 0)
	r.ends(0, "1 layer", "image", "pull", r.ref("app:1"), "--name", "app")
	if sent := r.wire.sent.Load(); kept < 500_000 || sent > r.size(img)-kept+overhead {
		t.Errorf("%d bytes were kept of %d, and the registry sent %d", kept, r.size(img), sent)
	}
}

// TestPullSaysNothingToTheTerminal: what a registry says does not command the terminal, neither while a pull waits for it nor at the end.
func TestPullSaysNothingToTheTerminal(t *testing.T) {
	r := newRig(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 4096))
			_, _ = io.WriteString(c, "HTTP/1.1 429 slow\x1b]0;owned\x07down\u202e\r\nRetry-After: 0\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			c.Close()
		}
	}()
	code, said := r.run("image", "pull", l.Addr().String()+"/app:1")
	if code == 0 || !strings.Contains(said, "asks to wait 0s") || strings.ContainsAny(said, "\x1b\x07\u202e") {
		t.Errorf("exit %d: %q", code, said)
	}
}
