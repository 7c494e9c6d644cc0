package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sys/unix"

	"berth/internal/sys/lock"
	"berth/internal/sys/refuse"
)

// blob is a file that is named by its digest. Its beginning may be there from an earlier pull.
type blob struct {
	digest   v1.Hash
	size     int64
	content  []byte   // if it is known
	unpacked string   // of a layer: its folder in the store, once it is unpacked
	file     *os.File // locked
	have     int64    // bytes that are there, and hashed
	hash     hash.Hash
}

// there reports whether the blob's layer is in the store.
func (b *blob) there() bool {
	if b.unpacked == "" {
		return false
	}
	_, err := os.Lstat(b.unpacked)
	return err == nil
}

// lock opens the blob's file and waits for its lock. waits is called if another process has it.
func (b *blob) lock(ctx context.Context, dir string, waits func()) error {
	path := filepath.Join(dir, b.digest.Hex)
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return err
		}
		if free, err := lock.Try(f); err == nil && !free {
			waits()
		}
		if err := lock.Wait(ctx, f); err != nil {
			f.Close()
			return err
		}
		mine, err := f.Stat()
		if err != nil {
			f.Close()
			return err
		}
		if now, err := os.Lstat(path); err == nil && os.SameFile(mine, now) {
			b.file = f
			return nil
		}
		f.Close() // the process that had the lock has removed the file
	}
}

// begin reads how much is there of a blob that was just locked.
func (b *blob) begin() error {
	if b.content != nil {
		b.size, b.have = int64(len(b.content)), int64(len(b.content))
		if err := b.file.Truncate(0); err != nil {
			return err
		}
		_, err := b.file.WriteAt(b.content, 0)
		return err
	}
	if b.there() { // another pull unpacked it while this one waited
		b.size = 0
		return os.Remove(b.file.Name())
	}
	b.hash = sha256.New()
	var err error
	if b.have, err = io.Copy(b.hash, io.LimitReader(b.file, b.size)); err != nil {
		return err
	}
	return b.file.Truncate(b.have)
}

// verified reports whether the whole blob is there and has its digest.
func (b *blob) verified() bool {
	return b.have == b.size && (b.hash == nil || hex.EncodeToString(b.hash.Sum(nil)) == b.digest.Hex)
}

// restart drops the part of the blob that is there.
func (b *blob) restart() error {
	b.have = 0
	b.hash.Reset()
	return b.file.Truncate(0)
}

// complete fetches the missing part of a blob, and verifies the blob. A blob whose beginning came from an earlier pull is
// fetched once more from its start if the digest differs: after a power cut the file may hold anything.
func (p *puller) complete(ctx context.Context, b *blob) error {
	before := b.have
	for {
		if b.verified() {
			return nil
		}
		if b.have == b.size {
			err := p.damaged("the blob "+b.digest.String()+" of "+p.ref.String(), v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(b.hash.Sum(nil))})
			p.done.Add(-b.have)
			if restartErr := b.restart(); restartErr != nil || before == 0 {
				return errors.Join(err, restartErr)
			}
			before = 0
		}
		if err := p.more(ctx, b); err != nil {
			return err
		}
	}
}

// more appends to a blob the data that the registry sends.
func (p *puller) more(ctx context.Context, b *blob) error {
	body, err := p.open(ctx, b)
	if err != nil {
		return err
	}
	defer body.Close()
	buf := make([]byte, 256<<10)
	for {
		n, err := body.Read(buf)
		if int64(n) > b.size-b.have {
			return errors.Join(refuse.Invalidf("the registry sends more than the %d bytes that the manifest says of %s", b.size, b.digest), b.restart())
		}
		if n > 0 {
			if _, err := b.file.WriteAt(buf[:n], b.have); err != nil {
				return err
			}
			b.hash.Write(buf[:n])
			b.have += int64(n)
			p.fetched.Add(int64(n))
			p.tell.progress(p.done.Add(int64(n)), p.total.Load())
		}
		switch {
		case b.have == b.size:
			return nil
		case err != nil:
			return &cut{have: b.have, size: b.size, err: err}
		}
	}
}

// cut is the end of a blob in its middle.
type cut struct {
	have, size int64
	err        error
}

func (c *cut) Error() string {
	return fmt.Sprintf("the blob ended after %d of %d bytes: %v", c.have, c.size, c.err)
}

func (c *cut) Unwrap() error { return c.err }

// open asks the registry for the missing part of a blob. It reads from the blob's start if the registry knows no
// ranges.
func (p *puller) open(ctx context.Context, b *blob) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	repo := p.ref.Context()
	url := fmt.Sprintf("https://%s/v2/%s/blobs/%s", repo.RegistryStr(), repo.RepositoryStr(), b.digest) // the transport knows whether it is http
	r, err := http.NewRequestWithContext(blobRequest(ctx), http.MethodGet, url, nil)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	if b.have > 0 {
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", b.have, b.size-1))
	}
	resp, err := p.client().Do(r)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	err = transport.CheckError(resp, http.StatusOK, http.StatusPartialContent)
	if err == nil && resp.StatusCode == http.StatusPartialContent &&
		!strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", b.have)) {
		err = fmt.Errorf("the registry sent another part of %s than it was asked for: %q", b.digest, clean(resp.Header.Get("Content-Range")))
	}
	if err == nil && resp.StatusCode == http.StatusOK && b.have > 0 {
		p.done.Add(-b.have)
		err = b.restart()
	}
	if err != nil {
		resp.Body.Close()
		cancel(nil)
		return nil, err
	}
	q := &quietBody{ReadCloser: resp.Body, cancel: cancel, ctx: ctx, patience: p.Quiet}
	q.timer = time.AfterFunc(p.Quiet, func() { cancel(errQuiet) })
	return q, nil
}

var errQuiet = errors.New("it sent nothing for too long")

// quietBody is a response's body. It ends when nothing comes any more.
type quietBody struct {
	io.ReadCloser
	ctx      context.Context
	cancel   context.CancelCauseFunc
	timer    *time.Timer
	patience time.Duration
}

func (q *quietBody) Read(b []byte) (int, error) {
	n, err := q.ReadCloser.Read(b)
	if err != nil && err != io.EOF && errors.Is(context.Cause(q.ctx), errQuiet) {
		return n, errQuiet
	}
	q.timer.Reset(q.patience)
	return n, err
}

func (q *quietBody) Close() error {
	q.timer.Stop()
	q.cancel(nil)
	return q.ReadCloser.Close()
}
