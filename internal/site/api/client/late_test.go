package client

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestLate: of an agent that takes a request and answers nothing, or half, the error says that it did not answer in time, and what to do.
func TestLate(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/nothing", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/half", func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(`{"name": `))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	c, err := New("unix:"+socket, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/nothing", "/half"} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := c.Do(ctx, http.MethodGet, path, nil, nil, new(struct{ Name string }))
		cancel()
		if err == nil || !strings.Contains(err.Error(), "ask the agent of "+socket+": it did not answer in time") || !strings.Contains(err.Error(), "pgrep -a berthd") {
			t.Errorf("%s: %v", path, err)
		}
	}
}
