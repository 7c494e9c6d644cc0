package registry

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"berth/internal/image/imagetest"
	"berth/internal/image/pull"
	"berth/test/testkit"
)

// rig is a registry, and a folder that images are pulled into.
type rig struct {
	*testing.T
	host   Host
	server *httptest.Server
	name   string // HOST:PORT
	dir    string
	env    map[string]string
	mu     sync.Mutex                                                   // held while before is looked at, or changed while answers may be on their way
	before func(http.ResponseWriter, *http.Request) http.ResponseWriter // may answer itself: then it returns nil
	served atomic.Int64                                                 // bytes of blobs
}

// newRig starts a registry of the library's, with or without TLS.
func newRig(t *testing.T, secure bool) *rig {
	t.Helper()
	r := &rig{T: t, dir: t.TempDir(), env: map[string]string{"HOME": "/nowhere"}}
	r.host = Host{Env: func(n string) string { return r.env[n] }, Certs: []string{filepath.Join(r.dir, "certs")}, Quiet: 20 * time.Second}
	inner := ggcr.New(ggcr.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)))
	r.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Method == http.MethodGet && strings.Contains(q.URL.Path, "/blobs/") {
			w = counting{w, &r.served}
		}
		r.mu.Lock()
		before := r.before
		r.mu.Unlock()
		if before != nil {
			if w = before(w, q); w == nil {
				return
			}
		}
		inner.ServeHTTP(w, q)
	}))
	r.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	if secure {
		r.server.StartTLS()
	} else {
		r.server.Start()
	}
	t.Cleanup(r.server.Close)
	r.name = r.server.Listener.Addr().String()
	return r
}

// counting counts the bytes of bodies.
type counting struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c counting) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b))) // before the other side sees the last of them
	return c.ResponseWriter.Write(b)
}

// trust puts the server's certificate where Podman looks for it.
func (r *rig) trust() {
	r.Helper()
	dir := filepath.Join(r.dir, "certs", r.name)
	testkit.Must(r, os.MkdirAll(dir, 0o755))
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.server.Certificate().Raw})
	testkit.Must(r, os.WriteFile(filepath.Join(dir, "ca.crt"), text, 0o644))
}

// noise returns the layer of a file that does not compress.
func noise(t testing.TB, seed byte, size int) []byte {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(data)
	return imagetest.Layer(t, imagetest.Entry{Name: "bin/", Type: tar.TypeDir}, imagetest.Entry{Name: "bin/noise", Data: string(data)})
}

// picture makes an image of layers.
func picture(t testing.TB, layers ...[]byte) v1.Image {
	t.Helper()
	img := empty.Image
	for _, l := range layers {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(l)), nil })
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			t.Fatal(err)
		}
	}
	c, err := img.ConfigFile()
	if err == nil {
		c = c.DeepCopy()
		c.OS, c.Architecture = "linux", "amd64"
		img, err = mutate.ConfigFile(img, c)
	}
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// push stores an image in the registry, behind whatever before does.
func (r *rig) push(path string, img v1.Image) {
	r.Helper()
	ref, err := name.ParseReference(r.name + "/" + path)
	testkit.Must(r, err)
	r.mu.Lock()
	before := r.before
	r.before = nil
	r.mu.Unlock()
	testkit.Must(r, remote.Write(ref, img, remote.WithTransport(r.server.Client().Transport)))
	r.mu.Lock()
	r.before = before
	r.mu.Unlock()
}

// outcome is how a pull ended.
type outcome struct {
	got    *pull.Got
	failed *pull.Failed
	said   []string
}

// pull pulls an image. used says that its layers were unpacked.
func (r *rig) pull(path string, change ...func(*pull.Request)) outcome {
	r.Helper()
	return r.pullAnd(path, false, change...)
}

func (r *rig) pullAnd(path string, used bool, change ...func(*pull.Request)) outcome {
	r.Helper()
	request := pull.Request{Ref: r.name + "/" + path, Folder: filepath.Join(r.dir, "pulls"), Layers: filepath.Join(r.dir, "layers")}
	for _, c := range change {
		c(&request)
	}
	line, err := json.Marshal(request)
	testkit.Must(r, err)
	in, inWriter := io.Pipe()
	out, outWriter := io.Pipe()
	go func() { _, _ = inWriter.Write(append(line, '\n')) }()
	done := make(chan struct{})
	go func() {
		_ = r.host.Serve(r.Context(), in, outWriter) // the answers say it too
		outWriter.Close()
		close(done)
	}()
	var o outcome
	lines := json.NewDecoder(out)
	for o.got == nil && o.failed == nil {
		var a pull.Answer
		testkit.Must(r, lines.Decode(&a))
		o.got, o.failed = a.Got, a.Failed
		if a.Say != "" {
			o.said = append(o.said, a.Say)
		}
	}
	if used {
		_, _ = inWriter.Write([]byte("used\n"))
	}
	inWriter.Close()
	go io.Copy(io.Discard, out)
	<-done
	return o
}

// blobs lists what lies in the folder of blobs: sizes by the first digits of digests.
func (r *rig) blobs() map[string]int64 {
	files, err := os.ReadDir(pull.Blobs(filepath.Join(r.dir, "pulls")))
	if err != nil {
		return nil
	}
	all := map[string]int64{}
	for _, f := range files {
		info, err := f.Info()
		testkit.Must(r, err)
		all[f.Name()] = info.Size()
	}
	return all
}

// complete checks that all blobs of an image are there, with their digests.
func (r *rig) complete(img v1.Image) {
	r.Helper()
	layers, err := img.Layers()
	testkit.Must(r, err)
	want := []v1.Hash{}
	for _, f := range []func() (v1.Hash, error){img.Digest, img.ConfigName} {
		h, err := f()
		testkit.Must(r, err)
		want = append(want, h)
	}
	for _, l := range layers {
		h, err := l.Digest()
		testkit.Must(r, err)
		want = append(want, h)
	}
	for _, h := range want {
		f, err := os.Open(filepath.Join(pull.Blobs(filepath.Join(r.dir, "pulls")), h.Hex))
		testkit.Must(r, err)
		is, _, err := v1.SHA256(f)
		testkit.Must(r, err)
		f.Close()
		if is != h {
			r.Errorf("blob %s has digest %s", h, is)
		}
	}
}

// size returns the bytes of an image's layers.
func size(t testing.TB, img v1.Image) int64 {
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	sum := int64(0)
	for _, l := range m.Layers {
		sum += l.Size
	}
	return sum
}
