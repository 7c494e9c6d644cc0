package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// look is how often the wall clock is compared with what ends by it. Timers of Go stand still while the host is suspended, and know nothing of a
// clock that is set: what is to be at a time of the wall clock is late by so much at the most.
const look = time.Minute

// Pause waits until a time of the wall clock, or for look if that is shorter: whoever waits for longer looks at the clock again. It is false if ctx
// has ended.
func Pause(ctx context.Context, until time.Time) bool {
	t := time.NewTimer(pause(time.Now(), until))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// pause returns how long Pause waits, from now until a time of the wall clock.
func pause(now, until time.Time) time.Duration { return min(until.Round(0).Sub(now.Round(0)), look) }

// Listen makes a listener of TLS connections (Server) of another. It ends connections that are open: when their certificate is
// revoked, as soon as the folder has the list, and when its time is over. It works until the listener is closed or ctx ends.
func Listen(ctx context.Context, l net.Listener, dir string) (net.Listener, error) {
	return listen(ctx, l, dir, look, time.Now)
}

// listen is Listen that compares certificates with this clock every so often.
func listen(ctx context.Context, l net.Listener, dir string, every time.Duration, now func() time.Time) (net.Listener, error) {
	config, err := Server(dir)
	if err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	changes := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MOVED_TO|unix.IN_CLOSE_WRITE); err != nil {
		changes.Close()
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	t := &listener{Listener: l, folder: open(dir), changes: changes, open: map[*tracked]bool{}}
	go t.follow(every, now)
	context.AfterFunc(ctx, func() { t.Close() })
	return tls.NewListener(t, config), nil
}

// listener knows the connections that it accepted and that are open.
type listener struct {
	net.Listener
	folder  *folder
	changes *os.File

	mu   sync.Mutex
	open map[*tracked]bool
}

// tracked is an open connection below TLS.
type tracked struct {
	net.Conn
	of *listener

	leaf  *x509.Certificate // nil before the handshake; of.mu guards it
	timer *time.Timer
}

// Accept notes the connection.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	t := &tracked{Conn: c, of: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[t] = true
	return t, nil
}

// Close stops listening and following. Open connections stay: their server ends them.
func (l *listener) Close() error {
	l.changes.Close()
	return l.Listener.Close()
}

// known notes the certificate of a connection, leaf, which the handshake accepted. The list may have changed since then.
func (t *tracked) known(leaf *x509.Certificate) error {
	t.of.mu.Lock()
	t.leaf = leaf
	t.timer = time.AfterFunc(time.Until(leaf.NotAfter), func() { t.Close() })
	t.of.mu.Unlock()
	s, err := t.of.folder.load()
	if err == nil {
		err = s.revoked.check(leaf)
	}
	return err
}

// Close forgets the connection.
func (t *tracked) Close() error {
	t.of.mu.Lock()
	delete(t.of.open, t)
	if t.timer != nil {
		t.timer.Stop()
	}
	t.of.mu.Unlock()
	return t.Conn.Close()
}

// follow closes connections whose certificates were revoked, each time the folder changes, and those whose certificates are over, which it looks
// at every so often: their timers miss it where the clock was set or the host suspended. A folder that cannot be read, for
// example because its files are being replaced, revokes nothing: a handshake refuses then, and the next change is looked at.
func (l *listener) follow(every time.Duration, now func() time.Time) {
	buf := make([]byte, 4096)
	for {
		_ = l.changes.SetReadDeadline(time.Now().Add(every)) // it fails only once it is closed
		if _, err := l.changes.Read(buf); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		s, err := l.folder.load()
		var end []*tracked
		l.mu.Lock()
		for t := range l.open {
			if t.leaf != nil && (now().After(t.leaf.NotAfter) || err == nil && s.revoked.check(t.leaf) != nil) {
				end = append(end, t)
			}
		}
		l.mu.Unlock()
		for _, t := range end {
			t.Close()
		}
	}
}
