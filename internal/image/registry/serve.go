// Package registry fetches images from OCI registries for the program berth-pull: it is the only package that talks to one.
//
// go-containerregistry signs in and reads manifests. It reads a blob from its beginning only, so blobs are fetched here,
// with HTTP's Range on its transport.
package registry

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"berth/internal/image/pull"
	"berth/internal/sys/refuse"
)

// Host has what a pull needs beside its request.
type Host struct {
	Env   func(name string) string // names the places of logins
	Certs []string                 // folders in which Docker and Podman look for a registry's certificates: HOST[:PORT]/*.crt
	Quiet time.Duration            // how long a registry may send nothing
}

// This returns the host of this process.
func This() Host {
	return Host{Env: os.Getenv, Certs: []string{"/etc/containers/certs.d", "/etc/docker/certs.d"}, Quiet: time.Minute}
}

// Serve answers one request, as package pull says. It returns once the asker has ended, or has been told of a failure.
func (h Host) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	first, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	tell := &teller{out: json.NewEncoder(out)}
	var r pull.Request
	if err := json.Unmarshal(first, &r); err != nil {
		return tell.fail(fmt.Errorf("read the request: %w", err))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan bool, 1)
	go func() { // the asker's end ends the pull
		word, _ := lines.ReadString('\n')
		ended <- word != ""
		cancel()
	}()
	p := &puller{Host: h, Request: r, tell: tell}
	defer p.release()
	got, err := p.pull(ctx)
	if err != nil {
		return tell.fail(err)
	}
	if err := tell.say(pull.Answer{Got: &got}); err != nil {
		return err
	}
	if <-ended {
		return p.remove()
	}
	return nil
}

// teller writes answers.
type teller struct {
	mu   sync.Mutex
	out  *json.Encoder
	last time.Time // of the last progress
}

func (t *teller) say(a pull.Answer) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.out.Encode(a)
}

// fail tells why the pull failed, and returns an error for the exit code.
func (t *teller) fail(err error) error {
	f := &pull.Failed{Kind: refuse.KindOf(err), What: err.Error()}
	if r, ok := errors.AsType[*refuse.Error](err); ok && r.Error() == err.Error() {
		f.What, f.Remedy = r.What, r.Remedy
	}
	return errors.Join(err, t.say(pull.Answer{Failed: f}))
}

// progress tells how far the pull is, at most ten times a second.
func (t *teller) progress(done, total int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.last) < 100*time.Millisecond && done < total {
		return
	}
	t.last = time.Now()
	_ = t.out.Encode(pull.Answer{Progress: &pull.Progress{Done: done, Total: total}}) // if the asker is gone, ctx ends
}
