package serve

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	libraryLayout "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"berth/internal/image"
	"berth/internal/image/imagetest"
	"berth/internal/sys/layout"
	"berth/internal/sys/treetar"
	"berth/internal/sys/treetar/treetest"
	"berth/test/testkit"
)

// host is a store, and a server of it.
type host struct {
	*testing.T
	dirs    layout.Layout
	handler *handler
	server  *httptest.Server
	log     *bytes.Buffer
}

func newHost(t *testing.T) *host {
	t.Helper()
	testkit.NeedsRoot(t)
	h := &host{T: t, dirs: layout.New(t.TempDir()), log: &bytes.Buffer{}}
	testkit.Must(t, image.Open(h.dirs).Make())
	h.start()
	return h
}

// start starts a server that knows nothing yet.
func (h *host) start() {
	logger := slog.New(slog.NewTextHandler(h.log, nil))
	h.handler = newHandler(h.Context(), h.dirs, logger)
	h.server = httptest.NewUnstartedServer(nil)
	h.server.Config = newServer(h.handler, logger)
	h.server.Start()
	h.Cleanup(h.server.Close)
}

// add imports an image.
func (h *host) add(name string, i imagetest.Image) image.Record {
	h.Helper()
	r, err := image.Open(h.dirs).Import(h.Context(), imagetest.OCIArchive(h, i), image.As{Name: name}, nil)
	testkit.Must(h, err)
	h.forget()
	return r
}

// forget has the store listed anew by the next request.
func (h *host) forget() {
	h.handler.mu.Lock()
	defer h.handler.mu.Unlock()
	h.handler.listed = time.Time{}
}

// ref names an image of this host for go-containerregistry.
func (h *host) ref(path string) name.Reference {
	h.Helper()
	r, err := name.ParseReference(strings.TrimPrefix(h.server.URL, "http://") + "/" + path)
	testkit.Must(h, err)
	return r
}

// get asks for a path, and returns the answer with its body.
func (h *host) get(method, path string, headers ...string) (*http.Response, string) {
	h.Helper()
	req, err := http.NewRequestWithContext(h.Context(), method, h.server.URL+path, nil)
	testkit.Must(h, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	testkit.Must(h, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	testkit.Must(h, err)
	return resp, string(body)
}

// pictureOf is an image with all that a layer can hold.
func pictureOf(t testing.TB) imagetest.Image {
	return imagetest.Image{
		Config: imagetest.Config{Env: []string{"A=b"}, Cmd: []string{"/bin/sh"}, User: "7", WorkingDir: "/srv", StopSignal: "SIGINT"},
		Layers: [][]byte{
			imagetest.Layer(
				t, imagetest.Entry{Name: "bin/", Type: tar.TypeDir}, imagetest.Entry{Name: "bin/su", Mode: 0o4755, Data: "set user id"},
				imagetest.Entry{Name: "bin/again", Type: tar.TypeLink, Link: "bin/su"}, imagetest.Entry{Name: "bin/sh", Type: tar.TypeSymlink, Link: "su"},
				imagetest.Entry{Name: "srv/", Type: tar.TypeDir, UID: 7, GID: 8}, imagetest.Entry{Name: "srv/old", UID: 7, Data: "old"},
				imagetest.Entry{Name: "srv/kept", Xattrs: map[string]string{"user.note": "a note"}}, imagetest.Entry{Name: "pipe", Type: tar.TypeFifo},
				imagetest.Entry{Name: "srv/shared", Mode: 0o664, ACL: "user::rw-,user:7:rw-,group::r--,mask::rw-,other::r--"},
				imagetest.Entry{Name: "srv/" + strings.Repeat("long", 50), Data: strings.Repeat("0123456789", 10_000)},
			),
			imagetest.Layer(
				t, imagetest.Entry{Name: "srv/.wh.old"}, imagetest.Entry{Name: "opt/", Type: tar.TypeDir}, imagetest.Entry{Name: "opt/.wh..wh..opq"},
				imagetest.Entry{Name: "opt/new", Data: "new"},
			),
		},
	}
}

// TestPulled pulls an image with go-containerregistry, which checks every digest and size, into the store of a second host: it has
// the same layers there, and is served from there with the same digest.
func TestPulled(t *testing.T) {
	a, b := newHost(t), newHost(t)
	was := a.add("team/worker:1.2", pictureOf(t))
	img, err := remote.Image(a.ref("team/worker:1.2"))
	testkit.Must(t, err)
	dir := t.TempDir()
	path, err := libraryLayout.Write(dir, empty.Index)
	testkit.Must(t, err)
	testkit.Must(t, path.AppendImage(img))
	is, err := image.Open(b.dirs).Import(t.Context(), dir, image.As{Name: "copy"}, nil)
	testkit.Must(t, err)
	b.forget()
	if d := cmp.Diff(was.Config, is.Config); d != "" || is.Size != was.Size || !is.Created.Equal(was.Created) {
		t.Errorf("%d bytes of %v, want %d of %v (-want +got):\n%s", is.Size, is.Created, was.Size, was.Created, d)
	}
	if read := strings.Join(treetest.Read(t, filepath.Join(a.dirs.Layers(), was.Layers[0][7:]), treetest.Whole()), "\n"); !strings.Contains(read, treetar.AccessList) {
		t.Error("the image that is served has no access control list")
	}
	for i := range was.Layers {
		keep := treetest.Whole()
		keep.TopTime = i == 0
		from, to := filepath.Join(a.dirs.Layers(), was.Layers[i][7:]), filepath.Join(b.dirs.Layers(), is.Layers[i][7:])
		if d := cmp.Diff(untimed(treetest.Read(t, from, keep)), untimed(treetest.Read(t, to, keep))); d != "" {
			t.Errorf("layer %d (-want +got):\n%s", i, d)
		}
	}
	want, err := img.Digest()
	testkit.Must(t, err)
	again, err := remote.Image(b.ref("copy"))
	testkit.Must(t, err)
	if got, err := again.Digest(); err != nil || got != want {
		t.Errorf("from the second host its digest is %s, %v; from the first %s", got, err, want)
	}
	a.start() // it remembers
	if d, err := remote.Head(a.ref("team/worker:1.2")); err != nil || d.Digest != want {
		t.Errorf("after a restart its digest is %v, %v; before %s", d, err, want)
	}
}

// untimed leaves the times of white-outs out of a tree's description: these have none.
func untimed(lines []string) []string {
	for i, line := range lines {
		if name, _, is := strings.Cut(line, " 20000 "); is { // a character device
			lines[i] = name + " is removed"
		}
	}
	return lines
}

// TestAnswers goes through the requests of the specification, and those that are none.
func TestAnswers(t *testing.T) {
	h := newHost(t)
	for _, n := range []string{"worker", "worker:latest", "worker:2", "docker.io/library/debian:12", "Worker", "localhost:5000/x:1", "a/../b"} {
		h.add(n, imagetest.Image{Layers: [][]byte{imagetest.Layer(t, imagetest.Entry{Name: "bin/", Type: tar.TypeDir})}})
	}
	testkit.Must(t, os.WriteFile(filepath.Join(h.dirs.Images(), "records", "broken.json"), nil, 0o600))
	resp, text := h.get("GET", "/v2/worker/manifests/latest")
	var m v1.Manifest
	testkit.Must(t, json.Unmarshal([]byte(text), &m))
	of, blob, none := resp.Header.Get("Docker-Content-Digest"), m.Layers[0].Digest.String(), "sha256:"+strings.Repeat("0", 64)
	for _, c := range []struct {
		method, path string
		status       int
		words        string
	}{
		{"GET", "/v2/", 200, "{}"},
		{"GET", "/v2", 200, "{}"},
		{"GET", "/v2/_catalog", 200, `{"repositories":["docker.io/library/debian","worker"]}`},
		{"GET", "/v2/_catalog?n=1", 200, `{"repositories":["docker.io/library/debian"]}`},
		{"GET", "/v2/_catalog?n=1&last=docker.io/library/debian", 200, `{"repositories":["worker"]}`},
		{"GET", "/v2/_catalog?n=-1", 400, "UNSUPPORTED"},
		{"GET", "/v2/worker/tags/list", 200, `{"name":"worker","tags":["2","latest"]}`},
		{"GET", "/v2/worker/tags/list?n=0", 200, `{"name":"worker","tags":[]}`},
		{"GET", "/v2/worker/tags/list?last=zzz", 200, `{"name":"worker","tags":[]}`},
		{"GET", "/v2/worker/manifests/" + of, 200, `"layers"`},
		{"HEAD", "/v2/worker/manifests/latest", 200, ""},
		{"HEAD", "/v2/worker/blobs/" + blob, 200, ""},
		{"GET", "/v2/worker/blobs/" + m.Config.Digest.String(), 200, `"architecture"`},
		{"GET", "/v2/worker/referrers/" + of, 200, `"manifests":[]`},
		{"GET", "/v2/worker/manifests/3", 404, "MANIFEST_UNKNOWN"},
		{"GET", "/v2/worker/manifests/" + none, 404, "MANIFEST_UNKNOWN"},
		{"GET", "/v2/worker/manifests/sha256:0", 400, "DIGEST_INVALID"},
		{"GET", "/v2/worker/blobs/" + none, 404, "BLOB_UNKNOWN"},
		{"GET", "/v2/worker/blobs/latest", 400, "DIGEST_INVALID"},
		{"GET", "/v2/worker/blobs/sha512:" + strings.Repeat("0", 128), 400, "DIGEST_INVALID"},
		{"GET", "/v2/nobody/manifests/latest", 404, "NAME_UNKNOWN"},
		{"GET", "/v2/Worker/manifests/latest", 400, "NAME_INVALID"},
		{"GET", "/v2/localhost:5000/x/manifests/1", 400, "NAME_INVALID"},
		{"POST", "/v2/worker/blobs/uploads/", 405, "UNSUPPORTED"},
		{"PUT", "/v2/worker/manifests/latest", 405, "UNSUPPORTED"},
		{"DELETE", "/v2/worker/manifests/" + of, 405, "UNSUPPORTED"},
		{"PATCH", "/", 405, "UNSUPPORTED"},
		{"GET", "/", 404, "UNSUPPORTED"},
		{"GET", "/v1/search", 404, "UNSUPPORTED"},
		{"GET", "/v2x", 404, "UNSUPPORTED"},
		{"GET", "/v2/worker", 404, "UNSUPPORTED"},
		// Names that look like a path on this host.
		{"GET", "/v2/../../etc/passwd", 404, "UNSUPPORTED"},
		{"GET", "/v2/a/../b/manifests/latest", 400, "NAME_INVALID"},
		{"GET", "/v2/%2e%2e/%2e%2e/manifests/latest", 400, "NAME_INVALID"},
		{"GET", "/v2/worker%2f..%2f..%2fetc/blobs/" + blob, 400, "NAME_INVALID"},
		{"GET", "/v2/worker/blobs/..%2f..%2fetc%2fpasswd", 400, "DIGEST_INVALID"},
		{"GET", "/v2/worker/manifests/..", 400, "DIGEST_INVALID"},
		{"GET", "/v2//manifests/latest", 400, "NAME_INVALID"},
		{"GET", "/v2/worker\x00/manifests/latest", 400, "NAME_INVALID"},
		{"GET", "/v2/" + strings.Repeat("a/", 4000) + "a/manifests/latest", 404, "NAME_UNKNOWN"},
		{"GET", "/v2/" + strings.Repeat("a", 60_000) + "/manifests/latest", 431, ""},
	} {
		resp, body := h.get(c.method, strings.ReplaceAll(c.path, "\x00", "%00"))
		if resp.StatusCode != c.status || !strings.Contains(body, c.words) {
			t.Errorf("%s %.200s: %d %s, want %d with %s", c.method, c.path, resp.StatusCode, body, c.status, c.words)
		}
		var e struct {
			Errors []struct{ Code, Message string }
		}
		if c.status >= 400 && c.status != 431 && (json.Unmarshal([]byte(body), &e) != nil || len(e.Errors) != 1 || e.Errors[0].Message == "") {
			t.Errorf("%s %s: the answer is no error of the specification: %s", c.method, c.path, body)
		}
		if c.status == 405 && resp.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s %s: it allows %q", c.method, c.path, resp.Header.Get("Allow"))
		}
	}
	if resp, _ := h.get("GET", "/v2/_catalog?n=1"); resp.Header.Get("Link") != `</v2/_catalog?last=docker.io%2Flibrary%2Fdebian&n=1>; rel="next"` {
		t.Errorf("the next part is %s", resp.Header.Get("Link"))
	}
}

// TestRanges asks for parts of a blob.
func TestRanges(t *testing.T) {
	h := newHost(t)
	h.add("worker", pictureOf(t))
	_, text := h.get("GET", "/v2/worker/manifests/latest")
	var m v1.Manifest
	testkit.Must(t, json.Unmarshal([]byte(text), &m))
	path := "/v2/worker/blobs/" + m.Layers[0].Digest.String()
	_, whole := h.get("GET", path)
	n := len(whole)
	for _, c := range []struct {
		header string
		status int
		want   string
	}{
		{"bytes=0-0", 206, whole[:1]},
		{"bytes=511-1025", 206, whole[511:1026]},
		{fmt.Sprintf("bytes=%d-", n-3), 206, whole[n-3:]},
		{"bytes=-5", 206, whole[n-5:]},
		{fmt.Sprintf("bytes=10-%d", 1<<62), 206, whole[10:]},
		{fmt.Sprintf("bytes=%d-", n), 416, ""},
		{"bytes=9-3", 416, ""},
		{"bytes=0-99999999999999999999999999", 416, ""},
		{"bytes=0-1,5-9" + strings.Repeat(",7-8", 500), 200, whole}, // several ranges: all of it, as HTTP allows
		{"lines=1-2", 416, ""},
	} {
		resp, body := h.get("GET", path, "Range", c.header)
		if resp.StatusCode != c.status || c.status < 400 && body != c.want {
			t.Errorf("%.40s: %d, %d bytes; want %d, %d bytes", c.header, resp.StatusCode, len(body), c.status, len(c.want))
		}
	}
	resp, body := h.get("GET", path, "Range", "bytes=4-", "If-Range", `"`+m.Layers[0].Digest.String()+`"`)
	if resp.StatusCode != 206 || body != whole[4:] {
		t.Errorf("If-Range with the digest: %d", resp.StatusCode)
	}
	if resp, _ = h.get("GET", path, "Range", "bytes=4-", "If-Range", `"other"`); resp.StatusCode != 200 {
		t.Errorf("If-Range with another: %d", resp.StatusCode)
	}
	if resp, _ = h.get("GET", path, "If-None-Match", `"`+m.Layers[0].Digest.String()+`"`); resp.StatusCode != 304 {
		t.Errorf("If-None-Match: %d", resp.StatusCode)
	}
}

// TestRemoved removes an image: it is not served any more, and a client in the middle of a blob sees that it ends too early.
func TestRemoved(t *testing.T) {
	h := newHost(t)
	big := imagetest.Layer(t, imagetest.Entry{Name: "bin/", Type: tar.TypeDir}, imagetest.Entry{Name: "bin/a", Data: strings.Repeat("a", 16<<20)}, imagetest.Entry{Name: "bin/b", Data: "b"})
	h.add("worker", imagetest.Image{Layers: [][]byte{big}})
	h.add("next", imagetest.Image{Layers: [][]byte{big, imagetest.Layer(t, imagetest.Entry{Name: "etc/", Type: tar.TypeDir})}})
	img, err := remote.Image(h.ref("worker"))
	testkit.Must(t, err)
	layers, err := img.Layers()
	testkit.Must(t, err)
	r, err := layers[0].Compressed()
	testkit.Must(t, err)
	defer r.Close()
	_, err = io.CopyN(io.Discard, r, 1000)
	testkit.Must(t, err)
	nobody := func(string, []string) ([]string, error) { return nil, nil }
	testkit.Must(t, image.Open(h.dirs).Remove(t.Context(), "next", nobody))
	h.forget()
	if resp, body := h.get("GET", "/v2/next/manifests/latest"); resp.StatusCode != 404 {
		t.Errorf("removed: %d %s", resp.StatusCode, body)
	}
	testkit.Must(t, image.Open(h.dirs).Remove(t.Context(), "worker", nobody))
	h.forget()
	if _, err := io.Copy(io.Discard, r); err == nil {
		t.Error("the blob of a removed image was sent to its end")
	}
	if resp, body := h.get("GET", "/v2/_catalog"); body != `{"repositories":[]}` {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if left, err := os.ReadDir(filepath.Join(h.dirs.Images(), "tmp")); err != nil || len(left) > 0 {
		t.Errorf("left in the store: %v, %v", left, err)
	}
}

// TestNotYet asks for an image whose layers are still being read.
func TestNotYet(t *testing.T) {
	h := newHost(t)
	h.handler.wait = time.Millisecond
	h.handler.turn <- struct{}{} // another image is being read
	h.add("worker", pictureOf(t))
	resp, body := h.get("GET", "/v2/worker/manifests/latest")
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "1" {
		t.Errorf("%d %v %s", resp.StatusCode, resp.Header, body)
	}
	<-h.handler.turn
	h.handler.wait = time.Minute
	if resp, body := h.get("GET", "/v2/worker/manifests/latest"); resp.StatusCode != 200 {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// TestSlowClient has a client that takes nothing, and one that does not say what it wants: both lose their connections. And the
// places for blobs are full while the first one has it.
func TestSlowClient(t *testing.T) {
	h := newHost(t)
	h.handler.quiet = 100 * time.Millisecond
	h.handler.blobs = newPlaces(2, 1)
	h.add("worker", imagetest.Image{Layers: [][]byte{imagetest.Layer(t, imagetest.Entry{Name: "bin/", Type: tar.TypeDir}, imagetest.Entry{Name: "bin/a", Data: strings.Repeat("a", 32<<20)})}})
	_, text := h.get("GET", "/v2/worker/manifests/latest")
	var m v1.Manifest
	testkit.Must(t, json.Unmarshal([]byte(text), &m))
	path := "/v2/worker/blobs/" + m.Layers[0].Digest.String()
	c, err := net.Dial("tcp", h.server.Listener.Addr().String())
	testkit.Must(t, err)
	defer c.Close()
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
	_, err = io.ReadFull(c, make([]byte, 100))
	testkit.Must(t, err)
	if resp, body := h.get("GET", path); resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" || !strings.Contains(body, "TOOMANYREQUESTS") {
		t.Errorf("a second blob: %d %s", resp.StatusCode, body)
	}
	elsewhere := http.Client{Transport: &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext}}
	defer elsewhere.CloseIdleConnections()
	resp, err := elsewhere.Get(h.server.URL + path)
	testkit.Must(t, err)
	if resp.Body.Close(); resp.StatusCode != 200 {
		t.Errorf("a client at another address: %d", resp.StatusCode)
	}
	testkit.Eventually(t, "the client that took nothing loses its place", func() bool { return h.handler.blobs.take("127.0.0.1") })
	if n, _ := io.Copy(io.Discard, c); n >= m.Layers[0].Size {
		t.Errorf("the client that took nothing got all %d bytes", n)
	}
}
