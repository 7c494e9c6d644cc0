package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"berth/internal/site/audit"
	"berth/internal/spec/roles"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/refuse"
)

// LongestBody is the most bytes of a request's body: of a spec. Documents have longestDocument, because one that is read is up to twenty
// times as large as its text.
const (
	LongestBody     = 1 << 20
	longestDocument = 64 << 10
)

// patience is the default of Server.Patience.
const patience = 30 * time.Second

// Audit keeps the line of an act, before it begins or when it has ended; why is why it was refused or failed. The error says why the line
// is not kept, if it is of an act that must not begin without one.
type Audit func(line audit.Line, why error) error

// Server answers the API.
type Server struct {
	Host  Host
	Site  Site  // nil: this host belongs to no site
	Audit Audit // nil: nothing is kept
	// Spent reports whether a caller has used up the share of the audit for acts; nil: there is no such share.
	Spent func(roles.Who) bool
	// Renew answers a caller's request for a new certificate; nil: there is no such endpoint.
	Renew http.Handler
	// Reports answers the reports of file servers; nil: there is no such endpoint.
	Reports http.Handler
	// Patience is how long a request's body may take to come, and twice that an answer that is no stream to go; 0: patience.
	Patience time.Duration

	bounds bounds
}

// call is one request while it is answered.
type call struct {
	http.ResponseWriter
	*http.Request
	server *Server
	who    roles.Who
	query  query
	line   audit.Line // of the audit
	back   func()     // gives back the caller's turn; nil: it has none
}

// ctx ends with the request.
func (c *call) ctx() context.Context { return c.Request.Context() }

// route is one operation of the API: its description in the OpenAPI document, and the function that does it.
type route struct {
	method, path string
	id           string // of the operation
	summary      string
	act          roles.Act
	params       []param
	takes        []body // the types of body that it takes; none: no body
	gives        any    // of this type is the document it answers; nil: none, or a stream
	stream       string // its media type, if it answers a stream
	refusals     []int  // statuses beside those that every operation may answer
	do           func(*call) (any, error)
}

// Handler returns the handler of all requests.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	byPath := map[string]map[string]route{}
	for _, r := range routes() {
		if byPath[r.path] == nil {
			byPath[r.path] = map[string]route{}
		}
		byPath[r.path][r.method] = r
	}
	for at, methods := range byPath {
		var allowed []string
		for m := range methods {
			allowed = append(allowed, m)
		}
		slices.Sort(allowed)
		mux.HandleFunc(at, func(w http.ResponseWriter, req *http.Request) {
			r, ok := methods[req.Method]
			if !ok {
				w.Header().Set("Allow", strings.Join(allowed, ", "))
				write(w, problem(http.StatusMethodNotAllowed, fmt.Sprintf("%s %s: the methods are %s", req.Method, req.URL.Path, strings.Join(allowed, ", "))))
				return
			}
			s.answer(w, req, r)
		})
	}
	if s.Reports != nil {
		mux.Handle("POST /v1/sync/report", s.inTurn(s.Reports))
	}
	if s.Renew != nil {
		mux.Handle("POST /v1/certificates/renew", s.inTurn(s.Renew))
	}
	mux.HandleFunc("GET /v1/openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(OpenAPI())
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		write(w, problem(http.StatusNotFound, fmt.Sprintf("there is no %.200s; /v1/openapi.json lists the paths", req.URL.Path)))
	})
	return s.recovered(mux)
}

// pages tells requests that a page of another site makes: a browser sends its user's certificate with the requests of every page.
var pages http.CrossOriginProtection

// byPage refuses a request that a page of another site makes.
func byPage(req *http.Request) error {
	if err := pages.Check(req); err != nil {
		return &statusError{http.StatusForbidden, refuse.Cannotf("ask without a browser, as berth --host does, or for the agent by the name that the page has", "a page of another site asks for this")}
	}
	return nil
}

// inTurn answers requests of hosts as next does, few of each caller at once.
func (s *Server) inTurn(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := byPage(req); err != nil {
			write(w, problemOf(err))
			return
		}
		if who, err := Identify(req); err == nil { // else next refuses it
			back, err := s.bounds.turn(req.Context(), who, "reports", mostReports)
			if err != nil {
				write(w, problemOf(err))
				return
			}
			defer back()
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // it may have waited for its turn: next bounds its answer anew
		next.ServeHTTP(w, req)
	})
}

// recovered answers 500 where a handler panics, and 404 where the mux would send a client to another spelling of its path.
func (s *Server) recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s.awaitTaken(w)
		defer func() {
			switch e := recover(); e {
			case nil:
			case http.ErrAbortHandler:
				panic(e)
			default:
				slog.Error("a request panicked", "method", req.Method, "path", req.URL.Path, "panic", fmt.Sprint(e), "stack", string(debug.Stack()))
				write(w, problem(http.StatusInternalServerError, "the agent failed; its log says how"))
			}
		}()
		if at := req.URL.EscapedPath(); req.Method == http.MethodConnect || at == "*" || path.Clean(at) != at {
			write(w, problem(http.StatusNotFound, fmt.Sprintf("there is no %.200q; /v1/openapi.json lists the paths", at)))
			return
		}
		next.ServeHTTP(w, req)
	})
}

// answer answers one request: it identifies the caller, checks the role and the parameters, does the act, and writes its
// result.
func (s *Server) answer(w http.ResponseWriter, req *http.Request, r route) {
	req.Body = http.MaxBytesReader(w, req.Body, r.longest())
	c := &call{ResponseWriter: w, Request: req, server: s, back: func() {}}
	c.awaitBody()
	defer func() { c.back() }() // once it is answered
	given, err := c.act(r)
	if r.stream == "" || err != nil && !errors.Is(err, errAnswered) { // a stream's reader may take any time, for its end, too
		s.awaitTaken(w)
	}
	switch {
	case errors.Is(err, errAnswered):
	case errors.Is(err, errCut):
		panic(http.ErrAbortHandler)
	case err != nil:
		write(w, problemOf(err))
	case r.stream != "": // is written
	case given == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		writeJSON(w, http.StatusOK, "application/json", given)
	}
}

// act does the act of a request, and keeps its result in the audit, also if it panics.
func (c *call) act(r route) (given any, err error) {
	ended := false
	defer func() {
		kept := err
		switch {
		case !ended:
			kept = errors.New("the agent failed; its log says how")
		case err == nil && c.line.Exit != nil && *c.line.Exit != 0:
			kept = fmt.Errorf("exit code %d", *c.line.Exit)
		}
		if c.server.Audit != nil {
			_ = c.server.Audit(c.line, kept) // it has ended: the agent's log says so
		}
	}()
	c.who, err = Identify(c.Request)
	c.line = line(c.who, c.Request, r.act, on(c.Request))
	if err != nil {
		err = &statusError{http.StatusUnauthorized, err}
	} else if err = byPage(c.Request); err == nil {
		c.query, err = readQuery(c.URL.RawQuery, r.params)
	}
	if err == nil && c.server.Spent != nil && (r.method != http.MethodGet || r.stream == webSocket) && c.server.Spent(c.who) {
		err = &statusError{http.StatusTooManyRequests, refuse.Busyf("%s has done more here than the audit takes of one operator within an hour; wait, or ask an admin", c.who)}
	}
	if err == nil && r.stream != "" {
		var back func()
		if back, err = c.server.bounds.take(c.who, r.stream); err == nil {
			defer back()
		}
	}
	if err == nil && r.stream == "" {
		var back func()
		if back, err = c.server.bounds.turnOf(c.who, c.Request); err == nil {
			c.back = back
		}
	}
	if err == nil {
		c.awaitBody()                                                                  // anew: it may have waited for its turn
		_ = http.NewResponseController(c.ResponseWriter).SetWriteDeadline(time.Time{}) // an act may take as long as it takes, and a stream
		given, err = r.do(c)
	}
	ended = true
	return given, err
}

// begins keeps in the audit that an act begins. detail has what its path does not say. An error refuses the act.
func (c *call) begins(detail string) error {
	c.line.Detail = detail
	err := c.server.Audit.begins(c.line)
	c.line.Begun = err == nil
	return err
}

// begins keeps in the audit that an act begins. If that cannot be kept, the act is refused: 507.
func (a Audit) begins(line audit.Line) error {
	if a == nil {
		return nil
	}
	line.Begun, line.Result = true, audit.Begins
	if err := a(line, nil); err != nil {
		return &statusError{http.StatusInsufficientStorage, err}
	}
	return nil
}

// awaitBody bounds how long the body may take to come, also one that is refused. Where there is none, the HTTP server reads already, to see the client leave: a
// deadline would end the request.
func (c *call) awaitBody() {
	if c.Request.ContentLength != 0 {
		_ = http.NewResponseController(c.ResponseWriter).SetReadDeadline(time.Now().Add(c.server.patient()))
	}
}

// awaitTaken bounds how long a client may take to read an answer that is no stream. After that the connection is closed, which frees
// what is held for it.
func (s *Server) awaitTaken(w http.ResponseWriter) { awaitTaken(w, s.patient()) }

// awaitTaken is Server.awaitTaken for a server that waits that long for a body.
func awaitTaken(w http.ResponseWriter, patience time.Duration) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(2 * patience))
}

// patient is how long a body may take.
func (s *Server) patient() time.Duration { return cmp.Or(s.Patience, patience) }

// longest is the most bytes of the body of a request: a spec's, or a document's.
func (r route) longest() int64 {
	if slices.ContainsFunc(r.takes, func(b body) bool { return b.of == nil }) {
		return LongestBody
	}
	return longestDocument
}

// errAnswered says that the handler has answered, or that the client is gone.
var errAnswered = errors.New("answered")

// errCut says that a stream has failed: its connection is broken off, so that the client sees that it is not whole.
var errCut = errors.New("the stream broke off")

func writeJSON(w http.ResponseWriter, status int, kind string, v any) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // the client is gone
}

// readJSON reads a document of the body strictly.
func (c *call) readJSON(to any) error {
	if err := c.media("application/json"); err != nil {
		return err
	}
	data, err := io.ReadAll(c.Body)
	if err != nil {
		return bodyError(err)
	}
	if err := jsonfile.CheckExact(data); err != nil {
		return refuse.Invalidf("the body: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(to); err != nil {
		return refuse.Invalidf("the body: %s", jsonfile.Wrong(data, err))
	}
	if dec.More() {
		return refuse.Invalidf("the body holds more than one document")
	}
	return nil
}

func bodyError(err error) error {
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &statusError{http.StatusRequestEntityTooLarge, refuse.Invalidf("the body is too large: at most %dKiB", large.Limit>>10)}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &statusError{http.StatusRequestTimeout, refuse.Invalidf("the body takes too long to come")}
	}
	return refuse.Invalidf("read the body: %w", err)
}

// media refuses a body of another media type.
func (c *call) media(allowed ...string) error {
	kind, _, _ := strings.Cut(c.Request.Header.Get("Content-Type"), ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	if !slices.Contains(allowed, kind) {
		return &statusError{http.StatusUnsupportedMediaType, refuse.Invalidf("the body is %q: want %s", kind, strings.Join(allowed, " or "))}
	}
	return nil
}
