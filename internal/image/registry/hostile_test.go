package registry

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/internal/image/imagetest"
	"berth/internal/image/pull"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	indexType    = "application/vnd.oci.image.index.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// TestPullRefuses pulls what no honest registry offers. Nothing of it is fetched.
func TestPullRefuses(t *testing.T) {
	r := newRig(t, false)
	config := `{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["` + imagetest.Digest(nil) + `"]}}`
	part := func(media, of string, size int, more string) string {
		return fmt.Sprintf(`{"mediaType":"%s","digest":%q,"size":%d%s}`, media, imagetest.Digest([]byte(of)), size, more)
	}
	image := func(configPart string, layers ...string) string {
		return `{"schemaVersion":2,"config":` + configPart + `,"layers":[` + strings.Join(layers, ",") + `]}`
	}
	good := part(configType, config, len(config), "")
	index := func(entries ...string) string {
		return `{"schemaVersion":2,"manifests":[` + strings.Join(entries, ",") + `]}`
	}
	on := func(os, arch string) string {
		return part(manifestType, os+arch, 100, fmt.Sprintf(`,"platform":{"os":%q,"architecture":%q}`, os, arch))
	}
	loop := index(part(indexType, "loop", 100, ""))
	for name, c := range map[string]struct {
		media, text string
		kind        refuse.Kind
		words       string
	}{
		"foreign layer":      {manifestType, image(good, part("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", "x", 5, `,"urls":["https://elsewhere.example/x"]`)), refuse.Invalid, "foreign layer"},
		"layer with a URL":   {manifestType, image(good, part(layerType, "x", 5, `,"urls":["https://elsewhere.example/x"]`)), refuse.Invalid, "foreign layer"},
		"negative size":      {manifestType, image(good, part(layerType, "x", -5, "")), refuse.Invalid, "cannot have -5 bytes"},
		"huge layer":         {manifestType, image(good, part(layerType, "x", 1<<50, "")), refuse.Invalid, "cannot have"},
		"huge together":      {manifestType, image(good, part(layerType, "x", 40<<30, ""), part(layerType, "y", 40<<30, "")), refuse.Invalid, "more than 64 GiB"},
		"two sizes":          {manifestType, image(good, part(layerType, "x", 5, ""), part(layerType, "x", 6, "")), refuse.Invalid, "cannot have 6 bytes"},
		"huge config":        {manifestType, image(part(configType, config, 1<<40, ""), part(layerType, "x", 5, "")), refuse.Invalid, "too many"},
		"no layers":          {manifestType, image(good), refuse.Invalid, "0 layers"},
		"too many layers":    {manifestType, image(good, strings.Split(strings.Repeat(part(layerType, "x", 5, "")+"\n", 501), "\n")[:501]...), refuse.Invalid, "501 layers"},
		"no layer at all":    {manifestType, image(good, part("text/html", "x", 5, "")), refuse.Invalid, "none of an image"},
		"other digest":       {manifestType, strings.ReplaceAll(image(good, part(layerType, "x", 5, "")), "sha256:", "md5:"), refuse.Invalid, "cannot be read"},
		"sha512":             {manifestType, image(good, `{"mediaType":"`+layerType+`","size":5,"digest":"sha512:`+strings.Repeat("0", 128)+`"}`), refuse.Invalid, "another digest than sha256"},
		"climbing digest":    {manifestType, strings.Replace(image(good, part(layerType, "x", 5, "")), "sha256:", "sha256:../../", 1), refuse.Invalid, "cannot be read"},
		"wrong diff_ids":     {manifestType, image(good, part(layerType, "x", 5, ""), part(layerType, "y", 5, "")), refuse.Invalid, "2 layers and its configuration names 1"},
		"wrong config size":  {manifestType, image(part(configType, config, 3, ""), part(layerType, "x", 5, "")), refuse.Failed, "configuration"},
		"artifact":           {manifestType, image(part("application/vnd.cncf.helm.config.v1+json", config, 3, ""), part(layerType, "x", 5, "")), refuse.Invalid, "no image: it is of type"},
		"schema 1":           {"application/vnd.docker.distribution.manifest.v1+prettyjws", `{"schemaVersion":1}`, refuse.Invalid, "schema 1"},
		"web page":           {"text/html", "<html>", refuse.Invalid, "no image"},
		"no JSON":            {manifestType, "{", refuse.Invalid, "cannot be read"},
		"other platforms":    {indexType, index(on("linux", "s390x"), on("unknown", "unknown"), on("windows", "amd64")), refuse.Cannot, "there are linux/s390x, windows/amd64"},
		"empty index":        {indexType, index(), refuse.Cannot, "none at all"},
		"dense manifest":     {manifestType, image(good, strings.Split(strings.Repeat("{},", 300_000)+"{}", ",")...), refuse.Invalid, "too many parts"},
		"endless answer":     {manifestType, strings.Repeat(" ", mostAnswer+1), refuse.Invalid, "longer than 8 MiB"},
		"long index":         {indexType, index(strings.Split(strings.Repeat(on("linux", "arm")+"\n", 1001), "\n")[:1001]...), refuse.Invalid, "too deep or too long"},
		"an index of itself": {indexType, loop, refuse.Failed, "does not match requested digest"},
		"bad words":          {manifestType, image(part(`\u001b[31m`, config, 3, ""), part(layerType, "x", 5, "")), refuse.Invalid, "no image"},
	} {
		t.Run(name, func(t *testing.T) {
			r.T = t
			r.mu.Lock()
			r.before = func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
				switch {
				case strings.Contains(q.URL.Path, "/manifests/"):
					w.Header().Set("Content-Type", c.media)
					_, _ = w.Write([]byte(c.text))
				case strings.HasSuffix(q.URL.Path, imagetest.Digest([]byte(config))):
					_, _ = w.Write([]byte(config))
				default:
					return w
				}
				return nil
			}
			r.mu.Unlock()
			o := r.pull("app:1")
			r.fails(o, c.kind, c.words)
			if strings.ContainsRune(o.failed.What, 0x1b) {
				t.Errorf("%q", o.failed.What)
			}
			if left := r.blobs(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestPullPlatform takes the image of an index that fits, or the one that is asked for.
func TestPullPlatform(t *testing.T) {
	r := newRig(t, false)
	img := picture(t, noise(t, 1, 1000))
	r.push("app:one", img)
	digest, err := img.Digest()
	testkit.Must(r, err)
	raw, err := img.RawManifest()
	testkit.Must(r, err)
	text := fmt.Sprintf(`{"schemaVersion":2,"manifests":[`+
		`{"mediaType":%[1]q,"digest":%[2]q,"size":%[3]d,"platform":{"os":"linux","architecture":"arm","variant":"v7"}},`+
		`{"mediaType":%[1]q,"digest":%[2]q,"size":%[3]d,"platform":{"os":"linux","architecture":"amd64"}}]}`, manifestType, digest, len(raw))
	r.mu.Lock()
	r.before = func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
		if !strings.HasSuffix(q.URL.Path, "/manifests/all") {
			return w
		}
		w.Header().Set("Content-Type", indexType)
		_, _ = w.Write([]byte(text))
		return nil
	}
	r.mu.Unlock()
	top, _, _ := v1.SHA256(bytes.NewReader([]byte(text)))
	for _, platform := range []string{"linux/amd64", "linux/arm/v7", "linux/arm"} {
		got := r.works(r.pull("app:all", func(q *pull.Request) { q.Platform = platform }))
		if got.Manifest != digest.String() || got.From != r.name+"/app@"+top.String() {
			t.Errorf("%s: %+v", platform, got)
		}
	}
	r.fails(r.pull("app:all", func(q *pull.Request) { q.Platform = "linux/arm64" }), refuse.Cannot, "there are linux/amd64, linux/arm/v7")
	r.fails(r.pull("app:all", func(q *pull.Request) { q.Platform = "amd64" }), refuse.Invalid, "OS/ARCH")
}

// TestPullTypes: media types may have parameters and capitals, layers may be of any form that can be unpacked, and an index may hold what is no
// image beside the only one.
func TestPullTypes(t *testing.T) {
	r := newRig(t, false)
	img := picture(t, noise(t, 1, 1000))
	r.push("app:1", img)
	digest, err := img.Digest()
	testkit.Must(t, err)
	raw, err := img.RawManifest()
	testkit.Must(t, err)
	entry := fmt.Sprintf(`{"mediaType":"%s; a=b","artifactType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d}`, manifestType, digest, len(raw))
	sbom := `{"mediaType":"` + manifestType + `","artifactType":"application/spdx+json","digest":"` + imagetest.Digest([]byte("x")) + `","size":1}`
	for name, c := range map[string]struct{ media, text string }{
		"parameters":       {manifestType + "; charset=utf-8", string(raw)},
		"capitals":         {strings.ToUpper(manifestType), string(raw)},
		"in the index":     {indexType + ";charset=utf-8", `{"schemaVersion":2,"manifests":[` + entry + `]}`},
		"attestation":      {indexType, `{"schemaVersion":2,"manifests":[` + strings.Replace(sbom, `"artifactType":"application/spdx+json"`, `"platform":{"os":"unknown","architecture":"unknown"}`, 1) + `,` + entry + `]}`},
		"of 2016":          {manifestType, strings.Replace(string(raw), "application/vnd.docker.container.image.v1+json", "application/octet-stream", 1)},
		"SBOM beside":      {indexType, `{"schemaVersion":2,"manifests":[` + sbom + `,` + entry + `]}`},
		"of configuration": {manifestType, strings.Replace(string(raw), "container.image.v1+json", "container.image.v1+json; a=b", 1)},
		"of layers":        {manifestType, strings.Replace(string(raw), "rootfs.diff.tar.gzip", "rootfs.diff.tar.zstd", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			r.T = t
			r.mu.Lock()
			r.before = func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
				if !strings.HasSuffix(q.URL.Path, "/manifests/other") {
					return w
				}
				w.Header().Set("Content-Type", c.media)
				_, _ = w.Write([]byte(c.text))
				return nil
			}
			r.mu.Unlock()
			r.works(r.pull("app:other"))
		})
	}
}

// TestWordsOfRegistry: the words of a registry that asks to wait are no commands to the terminal.
func TestWordsOfRegistry(t *testing.T) {
	r := newRig(t, false)
	r.push("app:1", picture(t, noise(t, 1, 1000)))
	var asked atomic.Int64
	r.mu.Lock()
	r.before = func(w http.ResponseWriter, _ *http.Request) http.ResponseWriter {
		if asked.Add(1) > 1 {
			return w
		}
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return w
		}
		_, _ = c.Write([]byte("HTTP/1.1 429 slow\x1b[2J\r\nRetry-After: 0\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
		c.Close()
		return nil
	}
	r.mu.Unlock()
	o := r.pull("app:1")
	r.works(o)
	if len(o.said) != 1 || !strings.Contains(o.said[0], "429 slow [2J") {
		t.Errorf("said %q", o.said)
	}
}

// TestNothingInTheClear: neither a redirect nor a token server makes the puller speak plain HTTP to another machine.
func TestNothingInTheClear(t *testing.T) {
	r := newRig(t, true)
	r.trust()
	r.push("app:1", picture(t, noise(t, 1, 1000)))
	r.mu.Lock()
	r.before = func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
		if strings.Contains(q.URL.Path, "/blobs/") {
			http.Redirect(w, q, "http://192.0.2.1/x", http.StatusTemporaryRedirect)
			return nil
		}
		return w
	}
	r.mu.Unlock()
	r.fails(r.pull("app:1"), refuse.Failed, "192.0.2.1 would be asked without TLS")
	r.mu.Lock()
	r.before = func(w http.ResponseWriter, _ *http.Request) http.ResponseWriter {
		w.Header().Set("WWW-Authenticate", `Bearer realm="http://192.0.2.1/token",service="here"`)
		w.WriteHeader(http.StatusUnauthorized)
		return nil
	}
	r.mu.Unlock()
	if o := r.pull("app:1"); o.failed == nil || !strings.Contains(o.failed.What, "192.0.2.1") && !strings.Contains(o.failed.What, "realm") {
		t.Errorf("%+v", o.failed)
	}
	r.fails(r.pull("x", func(q *pull.Request) { q.Ref = "192.168.255.1:1/app:1" }), refuse.Failed, "")
}
