package registry

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/internal/image/pull"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// fails checks how a pull failed.
func (r *rig) fails(o outcome, kind refuse.Kind, words string) {
	r.Helper()
	if o.failed == nil {
		r.Fatalf("the pull worked: %+v; it should fail with %q", o.got, words)
	}
	if text := o.failed.What + "; " + o.failed.Remedy; o.failed.Kind != kind || !strings.Contains(text, words) {
		r.Errorf("exit %d, %s\nwant %d about %q", o.failed.Kind, text, kind, words)
	}
}

func (r *rig) works(o outcome) pull.Got {
	r.Helper()
	if o.failed != nil {
		r.Fatalf("exit %d, %s; %s", o.failed.Kind, o.failed.What, o.failed.Remedy)
	}
	return *o.got
}

// TestPull pulls over plain HTTP on the loopback: everything once, nothing of what the store has, and by digest.
func TestPull(t *testing.T) {
	r := newRig(t, false)
	img := picture(t, noise(t, 1, 300_000), noise(t, 2, 200_000), noise(t, 1, 300_000))
	r.push("team/app:1", img)
	got := r.works(r.pull("team/app:1"))
	digest, err := img.Digest()
	testkit.Must(r, err)
	if got.Manifest != digest.String() || got.From != r.name+"/team/app@"+digest.String() {
		t.Errorf("got %+v", got)
	}
	r.complete(img)
	if left := r.blobs(); len(left) != 4 { // manifest, configuration, two layers of which one occurs twice
		t.Errorf("there are %v", left)
	}
	r.served.Store(0)
	if again := r.works(r.pull("team/app@" + digest.String())); again.Fetched != 0 || r.served.Load() > 3000 {
		t.Errorf("the second pull fetched %d bytes, the registry sent %d", again.Fetched, r.served.Load())
	}
	r.works(r.pullAnd("team/app:1", true))
	if left := r.blobs(); len(left) != 0 {
		t.Errorf("left after the layers were unpacked: %v", left)
	}
	layers, err := img.Layers()
	testkit.Must(r, err)
	have, err := layers[0].DiffID()
	testkit.Must(r, err)
	testkit.Must(r, os.MkdirAll(filepath.Join(r.dir, "layers", have.Hex), 0o755))
	size, err := layers[1].Size()
	testkit.Must(r, err)
	if got := r.works(r.pull("team/app:1")); got.Fetched != size {
		t.Errorf("fetched %d bytes, the store lacks %d", got.Fetched, size)
	}
	r.fails(r.pull("team/app:2"), refuse.NotFound, "MANIFEST_UNKNOWN")
	r.fails(r.pull("nobody/nothing:1"), refuse.NotFound, "no")
}

// TestPullTLS asks for a trusted certificate.
func TestPullTLS(t *testing.T) {
	r := newRig(t, true)
	img := picture(t, noise(t, 1, 1000))
	r.push("app:1", img)
	r.fails(r.pull("app:1"), refuse.Failed, "is not trusted")
	r.works(r.pull("app:1", func(q *pull.Request) { q.Insecure = true }))
	r.trust()
	r.works(r.pull("app:1"))
	r.complete(img)
}

// TestPullLogin signs in with a name and a password, and with a token for them.
func TestPullLogin(t *testing.T) {
	for _, way := range []string{"basic", "token"} {
		t.Run(way, func(t *testing.T) {
			r := newRig(t, true)
			r.trust()
			img := picture(t, noise(t, 1, 1000))
			r.push("team/app:1", img)
			secret := "Basic " + base64.StdEncoding.EncodeToString([]byte("ann:s3cret"))
			r.mu.Lock()
			r.before = func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
				said := q.Header.Get("Authorization")
				switch {
				case q.URL.Path == "/token" && said == secret:
					if q.URL.Query().Get("scope") != "repository:team/app:pull" {
						t.Errorf("asked for %s", q.URL)
					}
					fmt.Fprint(w, `{"token":"once"}`)
					return nil
				case way == "basic" && said == secret, way == "token" && said == "Bearer once":
					return w
				case way == "token":
					w.Header().Set("WWW-Authenticate", `Bearer realm="https://`+r.name+`/token",service="here"`)
				default:
					w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
				}
				w.WriteHeader(http.StatusUnauthorized)
				return nil
			}
			r.mu.Unlock()
			r.fails(r.pull("team/app:1"), refuse.Failed, "podman login")
			file := filepath.Join(r.dir, "auth.json")
			r.env["REGISTRY_AUTH_FILE"] = file
			r.fails(r.pull("team/app:1"), refuse.Failed, "auth.json")
			testkit.Must(r, os.WriteFile(file, fmt.Appendf(nil, `{"auths": {%q: {"auth": %q}}}`, r.name+"/team", secret[6:]), 0o600))
			r.works(r.pull("team/app:1"))
			r.complete(img)
		})
	}
}

// TestPullGoesOn cuts the connection in the middle of a layer. The next pull asks for the rest only.
func TestPullGoesOn(t *testing.T) {
	r := newRig(t, false)
	img := picture(t, noise(t, 1, 2_000_000))
	r.push("app:1", img)
	config, err := img.RawConfigFile()
	testkit.Must(r, err)
	for round, whole := range []bool{false, true} { // the second registry knows no ranges
		r.mu.Lock()
		r.before = func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
			if !strings.Contains(q.URL.Path, "/blobs/") {
				return w
			}
			if whole {
				q.Header.Del("Range")
			}
			return &cutting{ResponseWriter: w, left: 700_000}
		}
		r.mu.Unlock()
		r.fails(r.pull("app:1"), refuse.Failed, "of "+fmt.Sprint(size(t, img))+" bytes")
		r.mu.Lock()
		r.before = func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
			if whole {
				q.Header.Del("Range")
			}
			return w
		}
		r.mu.Unlock()
		r.served.Store(0)
		kept := int64(0)
		for _, n := range r.blobs() {
			kept = max(kept, n)
		}
		if kept < 500_000 || kept > 700_000 {
			t.Errorf("kept %d bytes", kept)
		}
		got := r.works(r.pull("app:1"))
		r.complete(img)
		want := size(t, img)
		if !whole {
			want -= kept
		}
		if got.Fetched != want || r.served.Load() != want+int64(len(config)) {
			t.Errorf("round %d: fetched %d bytes, the registry sent %d with the configuration; missing were %d", round, got.Fetched, r.served.Load(), want)
		}
		testkit.Must(r, os.RemoveAll(filepath.Join(r.dir, "pulls")))
	}
}

// cutting ends the connection after some bytes.
type cutting struct {
	http.ResponseWriter
	left int
}

func (c *cutting) Write(b []byte) (int, error) {
	if c.left -= len(b); c.left < 0 {
		_, _ = c.ResponseWriter.Write(b[:len(b)+c.left])
		panic(http.ErrAbortHandler)
	}
	return c.ResponseWriter.Write(b)
}

// ReadFrom makes io.Copy write in small pieces.
func (c *cutting) ReadFrom(from io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{c}, from)
}

// TestPullDamaged gets other bytes than the digest says: nothing of them stays. A damaged beginning that lies here is
// fetched again.
func TestPullDamaged(t *testing.T) {
	r := newRig(t, false)
	img := picture(t, noise(t, 1, 100_000))
	r.push("app:1", img)
	m, err := img.Manifest()
	testkit.Must(r, err)
	layer := m.Layers[0]
	send := func(body []byte) {
		r.mu.Lock()
		r.before = func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
			if strings.HasSuffix(q.URL.Path, layer.Digest.Hex) {
				_, _ = w.Write(body)
				return nil
			}
			return w
		}
		r.mu.Unlock()
	}
	send(bytes.Repeat([]byte("x"), int(layer.Size)))
	r.fails(r.pull("app:1"), refuse.Failed, "is damaged")
	if n := r.blobs()[layer.Digest.Hex]; n != 0 {
		t.Errorf("%d bytes are kept", n)
	}
	send(bytes.Repeat([]byte("x"), int(layer.Size)+1))
	r.fails(r.pull("app:1"), refuse.Invalid, "sends more than")
	send([]byte("short"))
	r.fails(r.pull("app:1"), refuse.Failed, fmt.Sprintf("after 5 of %d bytes", layer.Size))
	r.mu.Lock()
	r.before = nil
	r.mu.Unlock()
	r.works(r.pull("app:1")) // the five bytes were wrong
	r.complete(img)
	if got := r.works(r.pull("app:1")); got.Fetched != 0 {
		t.Errorf("fetched %d bytes again", got.Fetched)
	}
	path := filepath.Join(pull.Blobs(filepath.Join(r.dir, "pulls")), layer.Digest.Hex)
	testkit.Must(r, os.WriteFile(path, make([]byte, layer.Size+5), 0o600)) // as after a power cut
	r.works(r.pull("app:1"))
	r.complete(img)
}

// TestPullAsksAgain does what the registry asks for, and no more.
func TestPullAsksAgain(t *testing.T) {
	r := newRig(t, false)
	img := picture(t, noise(t, 1, 1000))
	r.push("app:1", img)
	for _, c := range []struct {
		status int
		after  string
		times  int // answered so
		tries  int // seen
		words  string
	}{
		{429, "0", 2, 3, ""},
		{503, time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat), 1, 2, ""},
		{503, "", 1, 1, "503"},
		{500, "soon", 1, 1, "500"},
		{429, "3600", 1, 1, "no more requests"},
		{429, "0", 99, mostTries, "no more requests"},
		{404, "0", 1, 1, "has no"},
	} {
		tries := 0
		r.mu.Lock()
		r.before = func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
			if !strings.Contains(q.URL.Path, "/manifests/") {
				return w
			}
			if tries++; tries > c.times {
				return w
			}
			if c.after != "" {
				w.Header().Set("Retry-After", c.after)
			}
			w.WriteHeader(c.status)
			return nil
		}
		r.mu.Unlock()
		o := r.pull("app:1")
		if worked := o.failed == nil; worked != (c.words == "") || !worked && !strings.Contains(o.failed.What, c.words) || tries != c.tries {
			t.Errorf("%+v: tried %d times, %+v", c, tries, o)
		}
		if c.tries > 1 && len(o.said) != c.tries-1 {
			t.Errorf("%+v: said %q", c, o.said)
		}
	}
}

// TestPullTwoAtOnce pulls one image twice at once, and another that shares a layer. Each layer is sent once.
func TestPullTwoAtOnce(t *testing.T) {
	r := newRig(t, false)
	a, b := noise(t, 1, 3_000_000), noise(t, 2, 3_000_000)
	one, two := picture(t, a, b), picture(t, b, a)
	r.push("one:1", one)
	r.push("two:1", two)
	var group sync.WaitGroup
	for i := range 6 {
		group.Go(func() {
			path := []string{"one:1", "two:1"}[i%2]
			if o := r.pull(path); o.failed != nil {
				t.Errorf("%s: %s", path, o.failed.What)
			}
		})
	}
	group.Wait()
	r.complete(one)
	r.complete(two)
	if sent, most := r.served.Load(), size(t, one)+6*5000; sent > most {
		t.Errorf("the registry sent %d bytes, both layers have %d", sent, size(t, one))
	}
}

// TestPullQuiet ends when a registry sends nothing any more.
func TestPullQuiet(t *testing.T) {
	r := newRig(t, false)
	img := picture(t, noise(t, 1, 100_000))
	r.push("app:1", img)
	r.host.Quiet = 300 * time.Millisecond
	ended := make(chan struct{})
	r.mu.Lock()
	r.before = func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
		m, _ := img.Manifest()
		if !strings.HasSuffix(q.URL.Path, m.Layers[0].Digest.Hex) {
			return w
		}
		w.Header().Set("Content-Length", fmt.Sprint(m.Layers[0].Size))
		_, _ = w.Write([]byte("begin"))
		w.(counting).ResponseWriter.(http.Flusher).Flush()
		<-q.Context().Done()
		close(ended)
		return nil
	}
	r.mu.Unlock()
	r.fails(r.pull("app:1"), refuse.Failed, "it sent nothing for too long")
	<-ended
}

// TestPullWithoutParts: a registry that cannot give a part of a blob gives the whole one. What a pull that was cut off left, of the blob that was
// cut and of those beside it, is never why the next one fails.
func TestPullWithoutParts(t *testing.T) {
	status := func(code int) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	part := func(said string, body ...byte) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			if said != "" {
				w.Header().Set("Content-Range", said)
			}
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(body)
		}
	}
	for name, c := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request)
		words  string // of the failure; "": it works
	}{
		"416":           {status(416), ""},
		"501":           {status(501), ""},
		"400":           {status(400), ""},
		"403":           {status(403), ""},
		"another part":  {part("bytes 0-9/10", 1, 2, 3), ""},
		"no place":      {part("", 1, 2, 3), ""},
		"nonsense":      {part("\x1b[31m", 1, 2, 3), ""},
		"nothing":       {nil, ""}, // of the right part
		"not now":       {status(503), "503"},
		"behind it":     {status(502), "502"},
		"no answer":     {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "cannot be reached"},
		"too many":      {status(429), "no more requests"},
		"never a whole": {nil, "sent another part"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, false)
			img := picture(t, noise(t, 1, 1_000_000), noise(t, 2, 1_000_000))
			r.push("app:1", img)
			r.mu.Lock()
			r.before = func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
				if strings.Contains(q.URL.Path, "/blobs/") {
					return &cutting{ResponseWriter: w, left: 400_000}
				}
				return w
			}
			r.mu.Unlock()
			r.fails(r.pull("app:1"), refuse.Failed, "")
			kept := r.blobs()
			ranges, partial := 0, 0
			for _, n := range kept {
				if n > 100_000 {
					partial++
				}
			}
			var mu sync.Mutex
			r.mu.Lock()
			r.before = func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
				said := q.Header.Get("Range")
				if name == "never a whole" && strings.Contains(q.URL.Path, "/blobs/") {
					part("bytes 7-9/10", 1, 2, 3)(w, q)
					return nil
				}
				if said == "" {
					return w
				}
				mu.Lock()
				ranges++
				mu.Unlock()
				if c.answer == nil {
					part(strings.Replace(said, "=", " ", 1)+"/1000000")(w, q)
				} else {
					c.answer(w, q)
				}
				return nil
			}
			r.mu.Unlock()
			o := r.pull("app:1")
			if c.words != "" {
				r.fails(o, refuse.Failed, c.words)
				if strings.Contains(o.failed.What, "cannot be reached") != (name == "no answer") {
					t.Error(o.failed.What)
				}
				for blob, n := range r.blobs() {
					if n < kept[blob] {
						t.Errorf("%d bytes of %d are kept of %s", n, kept[blob], blob)
					}
				}
				return
			}
			r.works(o)
			r.complete(img)
			if partial == 0 || ranges < partial {
				t.Errorf("%d blobs were there in part, %d parts were asked for", partial, ranges)
			}
		})
	}
}
