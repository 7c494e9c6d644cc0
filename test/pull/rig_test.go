// Package pull pulls images as users do: with the programs berth and berth-pull, from Debian's docker-registry, through a
// wire that counts, cuts and slows.
package pull

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"berth/internal/image/imagetest"
	"berth/test/built"
	"berth/test/env"
	"berth/test/testkit"
)

// rig is a registry behind a wire, and a root that images are pulled into.
type rig struct {
	*testing.T
	env.Berth
	at   string // the registry's own address
	wire *wire
	stop func() // kills the registry
}

// newRoot is a rig without a registry.
func newRoot(t *testing.T) *rig {
	t.Helper()
	if testing.Short() {
		t.Skip("no programs are built with -short")
	}
	testkit.NeedsRoot(t)
	r := &rig{T: t, Berth: env.New(t, "")}
	r.Env = []string{"NO_COLOR=1", "HOME=" + r.Dir(), "XDG_RUNTIME_DIR="}
	testkit.Must(t, built.Puller(t.Context(), r.Dir()))
	return r
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := newRoot(t)
	dir := r.Dir()
	config := filepath.Join(dir, "registry.yml")
	testkit.Must(r, os.WriteFile(config, fmt.Appendf(nil, "version: 0.1\nlog: {level: info}\nstorage: {filesystem: {rootdirectory: %s/store}}\nhttp: {addr: \"127.0.0.1:0\"}\n", dir), 0o600))
	r.start(config)
	r.wire = newWire(t, r.at)
	return r
}

// listens is what docker-registry logs when the kernel has given it a free port.
var listens = regexp.MustCompile(`listening on (127\.0\.0\.1:[0-9]+)`)

// start starts docker-registry, reads from its log where it listens, and waits until it answers.
func (r *rig) start(config string) {
	r.Helper()
	cmd := exec.Command("docker-registry", "serve", config)
	log, err := os.Create(filepath.Join(r.Dir(), "registry.log"))
	testkit.Must(r, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	testkit.Must(r, cmd.Start())
	r.stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	r.Cleanup(r.stop)
	testkit.Eventually(r, "docker-registry answers", func() bool {
		text, _ := os.ReadFile(log.Name())
		at := listens.FindSubmatch(text)
		if at == nil {
			return false
		}
		r.at = string(at[1])
		resp, err := http.Get("http://" + r.at + "/v2/")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil
	})
}

// ref returns the name of an image behind the wire.
func (r *rig) ref(path string) string { return r.wire.Addr().String() + "/" + path }

// push puts an image into the registry, not through the wire.
func (r *rig) push(path string, layers ...[]byte) v1.Image {
	r.Helper()
	img := empty.Image
	for _, l := range layers {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(l)), nil })
		testkit.Must(r, err)
		img, err = mutate.AppendLayers(img, layer)
		testkit.Must(r, err)
	}
	c, err := img.ConfigFile()
	testkit.Must(r, err)
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", "amd64"
	c.Config.Cmd = []string{"/bin/busybox", "echo", "hello from the registry"}
	img, err = mutate.ConfigFile(img, c)
	testkit.Must(r, err)
	ref, err := name.ParseReference(r.at + "/" + path)
	testkit.Must(r, err)
	testkit.Must(r, remote.Write(ref, img))
	return img
}

// size returns the bytes of an image's layers.
func (r *rig) size(img v1.Image) int64 {
	m, err := img.Manifest()
	testkit.Must(r, err)
	sum := int64(0)
	for _, l := range m.Layers {
		sum += l.Size
	}
	return sum
}

// noise returns the layer of a file that does not compress.
func noise(t testing.TB, seed byte, size int) []byte {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(data)
	return imagetest.Layer(t, imagetest.Entry{Name: "srv/", Type: tar.TypeDir}, imagetest.Entry{Name: fmt.Sprint("srv/noise", seed), Data: string(data)})
}

// run runs berth and returns its exit code and all that it printed.
func (r *rig) run(args ...string) (int, string) {
	out, said, code := r.Try(args...)
	return code, out + said
}

// ends runs berth and checks its exit code and what it prints.
func (r *rig) ends(code int, words string, args ...string) string {
	r.Helper()
	got, out := r.run(args...)
	if got != code || !strings.Contains(out, words) {
		r.Fatalf("berth %s: exit %d, want %d about %q:\n%s", strings.Join(args, " "), got, code, words, out)
	}
	return out
}

// nothing checks that no image is listed.
func (r *rig) nothing() {
	r.Helper()
	r.ends(0, "[]", "image", "ls", "--json")
}

// kept returns the bytes of blobs that pulls left.
func (r *rig) kept() int64 {
	files, _ := filepath.Glob(filepath.Join(r.Root, "lib/images/pulls/blobs/sha256/*"))
	sum := int64(0)
	for _, f := range files {
		if info, err := os.Stat(f); err == nil {
			sum += info.Size()
		}
	}
	return sum
}

// wire passes connections on. It counts what the registry sends, and can end all connections after some of it.
type wire struct {
	net.Listener
	sent atomic.Int64
	cut  atomic.Int64  // when sent reaches it, connections end; 0: never
	stop atomic.Int64  // when sent reaches it, nothing more is passed on until goOn; 0: never
	full chan struct{} // told when stop is reached
	on   atomic.Pointer[chan struct{}]
}

func newWire(t *testing.T, to string) *wire {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{Listener: l, full: make(chan struct{}, 100)}
	w.restart(0, 0)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go w.pass(c, to)
		}
	}()
	return w
}

func (w *wire) pass(c net.Conn, to string) {
	defer c.Close()
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer server.Close()
	gone := make(chan struct{})
	go func() {
		_, _ = io.Copy(server, c)
		server.Close()
		close(gone)
	}()
	buf := make([]byte, 16<<10)
	for {
		n, err := server.Read(buf)
		if n > 0 {
			sent := w.sent.Add(int64(n))
			if cut := w.cut.Load(); cut > 0 && sent >= cut {
				return
			}
			if stop := w.stop.Load(); stop > 0 && sent >= stop {
				w.full <- struct{}{}
				select {
				case <-gone:
					return
				case <-*w.on.Load():
				}
			}
			if _, err := c.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// restart sets the counter to zero and says where connections end, and where they are held.
func (w *wire) restart(cut, stop int64) {
	on := make(chan struct{})
	w.on.Store(&on)
	w.sent.Store(0)
	w.cut.Store(cut)
	w.stop.Store(stop)
}

// goOn passes on what is held.
func (w *wire) goOn() {
	w.stop.Store(0)
	close(*w.on.Load())
}
