package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/types"
)

// handler answers requests. No part of a request ever becomes a path on this host: names are looked up among the store's images, and
// digests among their blobs.
type handler struct {
	*library
	log   *slog.Logger
	wait  time.Duration // for an image that is being read, before the client is told to come again
	quiet time.Duration // how long a client may take none of an answer
	blobs *places       // one for each blob that is being sent
}

// known errors of the distribution specification ("Error Codes").
const (
	nameUnknown     = "NAME_UNKNOWN"
	nameInvalid     = "NAME_INVALID"
	manifestUnknown = "MANIFEST_UNKNOWN"
	blobUnknown     = "BLOB_UNKNOWN"
	digestInvalid   = "DIGEST_INVALID"
	unsupported     = "UNSUPPORTED"
	tooMany         = "TOOMANYREQUESTS"
	unknown         = "UNKNOWN"
)

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := &pacer{ResponseWriter: w, quiet: h.quiet, status: http.StatusOK}
	p.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	p.Header().Set("X-Content-Type-Options", "nosniff")
	h.route(p, r)
	h.log.Info("request", "from", r.RemoteAddr, "method", r.Method, "path", r.URL.EscapedPath(), "status", p.status, "bytes", p.sent)
}

func (h *handler) route(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		deny(w, http.StatusMethodNotAllowed, unsupported, "these images are read-only")
		return
	}
	rest, ours := strings.CutPrefix(r.URL.EscapedPath(), "/v2") // escaped: a name needs no escapes, so one that has some is none
	shelf, err := h.images()
	switch {
	case !ours || rest != "" && rest[0] != '/':
		deny(w, http.StatusNotFound, unsupported, "this server has images, below /v2/")
		return
	case err != nil:
		h.fail(w, "the store", err)
		return
	case rest == "" || rest == "/":
		document(w, "application/json", []byte("{}"))
		return
	case rest == "/_catalog":
		h.list(w, r, "", slices.Sorted(maps.Keys(shelf.repos)))
		return
	}
	repo, kind, ref := parse(rest[1:])
	switch {
	case kind == "":
		deny(w, http.StatusNotFound, unsupported, "there is nothing at this path")
	case !repoName.MatchString(repo):
		deny(w, http.StatusBadRequest, nameInvalid, "this is not the name of a repository")
	case shelf.repos[repo] == nil:
		deny(w, http.StatusNotFound, nameUnknown, "this host has no image of that name")
	case kind == "tags":
		h.list(w, r, repo, slices.Sorted(maps.Keys(shelf.repos[repo])))
	case kind == "manifests" && tagName.MatchString(ref):
		record, has := shelf.repos[repo][ref]
		if !has {
			deny(w, http.StatusNotFound, manifestUnknown, "this host has no image with that tag")
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), h.wait)
		defer cancel()
		p, err := h.get(ctx, record)
		if err != nil {
			h.fail(w, record.Name, err)
			return
		}
		manifest(w, p)
	case !digest.MatchString(ref):
		deny(w, http.StatusBadRequest, digestInvalid, "this is neither a tag nor a sha256 digest")
	default:
		h.byDigest(w, r, shelf, repo, kind, ref)
	}
}

// parse splits a path into the repository, what is asked of it, and the tag or digest.
func parse(path string) (repo, kind, ref string) {
	if repo, is := strings.CutSuffix(path, "/tags/list"); is {
		return repo, "tags", ""
	}
	for _, kind := range []string{"manifests", "blobs", "referrers"} {
		i := strings.LastIndex(path, "/"+kind+"/")
		if i < 0 {
			continue
		}
		if ref := path[i+len(kind)+2:]; !strings.Contains(ref, "/") {
			return path[:i], kind, ref
		}
	}
	return "", "", ""
}

// byDigest answers with a document or a blob of the repository's images.
func (h *handler) byDigest(w http.ResponseWriter, r *http.Request, s shelf, repo, kind, want string) {
	if kind == "referrers" {
		document(w, string(types.OCIImageIndex), []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}`))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), h.wait)
	defer cancel()
	var notYet error
	for _, tag := range slices.Sorted(maps.Keys(s.repos[repo])) {
		p, err := h.get(ctx, s.repos[repo][tag])
		switch {
		case err != nil:
			notYet = err
		case kind == "manifests" && p.digest == want:
			manifest(w, p)
			return
		case kind == "blobs":
			if l, has := p.blobs[want]; has {
				h.blob(w, r, p, l, want)
				return
			}
		}
	}
	switch {
	case notYet != nil:
		h.fail(w, repo, notYet)
	case kind == "manifests":
		deny(w, http.StatusNotFound, manifestUnknown, "this host has no image with that digest")
	default:
		deny(w, http.StatusNotFound, blobUnknown, "no image of that name has such a blob")
	}
}

func manifest(w http.ResponseWriter, p picture) {
	w.Header().Set("Docker-Content-Digest", p.digest)
	w.Header().Set("ETag", `"`+p.digest+`"`)
	document(w, string(types.OCIManifestSchema1), p.manifest)
}

// blob sends a blob, or the range of it that the request asks for. A request for several ranges gets all of the blob, as HTTP
// allows: no client of registries asks so, and many small ranges would cost more than they bring.
func (h *handler) blob(w http.ResponseWriter, r *http.Request, p picture, l *layer, want string) {
	from, _, _ := net.SplitHostPort(r.RemoteAddr) // "" if there is none: such clients share their places
	if !h.blobs.take(from) {
		w.Header().Set("Retry-After", "5")
		deny(w, http.StatusTooManyRequests, tooMany, "as many blobs are being sent as this server sends at a time, in all or to one address")
		return
	}
	defer h.blobs.give(from)
	if strings.Contains(r.Header.Get("Range"), ",") {
		r.Header.Del("Range")
	}
	w.Header().Set("Docker-Content-Digest", want)
	w.Header().Set("ETag", `"`+want+`"`)
	w.Header().Set("Content-Type", "application/octet-stream")
	if l == nil {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(p.config))
		return
	}
	content, err := l.open()
	if err != nil {
		h.fail(w, want, err)
		return
	}
	defer content.Close()
	http.ServeContent(w, r, "", time.Time{}, &telling{reader: content, log: h.log, blob: want})
}

// telling is a reader that tells of an error, which ServeContent does not. The client sees that the answer ends too early.
type telling struct {
	*reader
	log  *slog.Logger
	blob string
}

func (t *telling) Read(p []byte) (int, error) {
	n, err := t.reader.Read(p)
	if err != nil && t.at < t.size {
		t.log.Error("a blob cannot be read: was its image removed?", "blob", t.blob, "error", err)
	}
	return n, err
}

// list answers with names, of at most n and those after last, if the request says so.
func (h *handler) list(w http.ResponseWriter, r *http.Request, repo string, names []string) {
	q := r.URL.Query()
	if last := q.Get("last"); last != "" {
		names = names[sortedAfter(names, last):]
	}
	if q.Has("n") {
		n, err := strconv.Atoi(q.Get("n"))
		if err != nil || n < 0 {
			deny(w, http.StatusBadRequest, unsupported, "n must be a number")
			return
		}
		if n < len(names) {
			names = names[:n]
			if n > 0 {
				next := url.Values{"n": {strconv.Itoa(n)}, "last": {names[n-1]}}
				w.Header().Set("Link", "<"+r.URL.EscapedPath()+"?"+next.Encode()+`>; rel="next"`)
			}
		}
	}
	if names == nil {
		names = []string{}
	}
	body := map[string]any{"repositories": names}
	if repo != "" {
		body = map[string]any{"name": repo, "tags": names}
	}
	text, _ := json.Marshal(body) // names are plain text
	document(w, "application/json", text)
}

// sortedAfter returns how many of the names come before or at last.
func sortedAfter(names []string, last string) int {
	i, found := slices.BinarySearch(names, last)
	if found {
		i++
	}
	return i
}

// fail answers that an image cannot be served, and logs why.
func (h *handler) fail(w http.ResponseWriter, what string, err error) {
	switch {
	case errors.Is(err, errNotYet):
		w.Header().Set("Retry-After", strconv.Itoa(max(1, int(h.wait.Seconds()))))
		deny(w, http.StatusServiceUnavailable, unknown, errNotYet.Error()+": ask again")
	case errors.Is(err, errGone), errors.Is(err, fs.ErrNotExist):
		deny(w, http.StatusNotFound, manifestUnknown, "the image was removed")
	default:
		h.log.Error("an image cannot be served", "image", what, "error", err)
		deny(w, http.StatusInternalServerError, unknown, "the image cannot be read; the server's log says why")
	}
}

// document answers with a small body. net/http leaves it out for HEAD.
func document(w http.ResponseWriter, kind string, body []byte) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // a client that is gone needs no answer
}

// deny answers with an error of the specification's form.
func deny(w http.ResponseWriter, status int, code, message string) {
	type one struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	text, _ := json.Marshal(map[string][]one{"errors": {{code, message}}})
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = w.Write(text)
}
