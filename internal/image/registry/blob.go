package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net"
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

// more appends to a blob the data that the registry sends. A registry that does not give the missing part, or sends nothing of it, is asked for
// the whole blob: what an earlier pull left must not be why this one fails.
func (p *puller) more(ctx context.Context, b *blob) error {
	before := b.have
	body, err := p.open(ctx, b, b.have)
	if err == nil {
		err = p.read(body, b)
	}
	switch {
	case err == nil, before == 0, b.have != before, ctx.Err() != nil, !wholeMayHelp(err):
		return err
	}
	if body, err = p.open(ctx, b, 0); err != nil {
		return err
	}
	return p.read(body, b)
}

// wholeMayHelp reports whether a registry that did not give a part of a blob may give all of it: if it answered something. Not if it says that it, or what
// is behind it, does nothing now, nor if it was not reached: what is there, perhaps gigabytes, would be fetched again for nothing.
func wholeMayHelp(err error) bool {
	if answer, ok := errors.AsType[*transport.Error](err); ok {
		switch answer.StatusCode {
		case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return false
		}
		return true
	}
	if c, ok := errors.AsType[*cut](err); ok {
		return errors.Is(c, io.EOF) || errors.Is(c, io.ErrUnexpectedEOF)
	}
	if _, ok := errors.AsType[*fs.PathError](err); ok { // a file of ours
		return false
	}
	_, refused := errors.AsType[*refuse.Error](err)
	_, network := errors.AsType[*net.OpError](err)
	slow, timed := errors.AsType[net.Error](err)
	return !refused && !network && (!timed || !slow.Timeout()) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF)
}

// read appends an answer's body to a blob.
func (p *puller) read(body io.ReadCloser, b *blob) error {
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
			return &cut{error: err, have: b.have, size: b.size}
		}
	}
}

// cut is the end of a blob in its middle: failure says where.
type cut struct {
	error
	have, size int64
}

func (c *cut) Unwrap() error { return c.error }

// another is an answer with another part of a blob than the one that was asked for.
type another struct{ said string }

func (a *another) Error() string {
	return fmt.Sprintf("it sent another part of a blob than it was asked for: %q", clean(a.said))
}

// open asks the registry for a blob, from a byte on. If it sends the blob from its start, what is there of it is dropped.
func (p *puller) open(ctx context.Context, b *blob, from int64) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	repo := p.ref.Context()
	url := fmt.Sprintf("https://%s/v2/%s/blobs/%s", repo.RegistryStr(), repo.RepositoryStr(), b.digest) // the transport knows whether it is http
	r, err := http.NewRequestWithContext(blobRequest(ctx), http.MethodGet, url, nil)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	if from > 0 {
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, b.size-1))
	}
	resp, err := p.client().Do(r)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	err = transport.CheckError(resp, http.StatusOK, http.StatusPartialContent)
	if err == nil && resp.StatusCode == http.StatusOK {
		from = 0
	} else if said := resp.Header.Get("Content-Range"); err == nil && !strings.HasPrefix(said, fmt.Sprintf("bytes %d-", from)) {
		err = &another{said}
	}
	if err == nil && from == 0 && b.have > 0 {
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
