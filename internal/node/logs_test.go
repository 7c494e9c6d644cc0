package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSeekLines(t *testing.T) {
	for _, tc := range []struct {
		text string
		n    int
		want string
	}{
		{"a\nb\nc\n", 2, "b\nc\n"},
		{"a\nb\nc", 2, "b\nc"},
		{"a\nb\n", 5, "a\nb\n"},
		{"a\n", 0, ""},
		{"", 3, ""},
		{strings.Repeat("x", 20000) + "\nlast\n", 1, "last\n"},
	} {
		f, err := os.Create(filepath.Join(t.TempDir(), "log"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(tc.text); err != nil {
			t.Fatal(err)
		}
		if err := seekLines(f, tc.n); err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if _, err := got.ReadFrom(f); err != nil {
			t.Fatal(err)
		}
		if got.String() != tc.want {
			t.Errorf("last %d lines of %.20q: %.40q, want %.40q", tc.n, tc.text, got.String(), tc.want)
		}
	}
}

// TestLogIsCapped: a log that somebody appends to loses its head, and what is appended afterwards follows the tail.
func TestLogIsCapped(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	trimmer, err := newLogTrimmer()
	if err != nil {
		t.Fatal(err)
	}
	trimmer.add(path)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { trimmer.run(ctx); close(done) }()
	line := strings.Repeat("x", 99) + "\n"
	for range (logCap + 1<<20) / len(line) {
		if _, err := f.WriteString(line); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.Now().Add(20 * time.Second)
	for size(t, path) > logCap {
		if time.Now().After(deadline) {
			t.Fatalf("the log still has %d bytes", size(t, path))
		}
		time.Sleep(50 * time.Millisecond)
		fmt.Fprintln(f, "more")
	}
	fmt.Fprintln(f, "the end")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasSuffix(text, []byte("the end\n")) || len(text) < logCap/4 {
		t.Errorf("the log has %d bytes and ends with %q", len(text), text[max(0, len(text)-20):])
	}
	cancel()
	<-done
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	s, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return s.Size()
}
