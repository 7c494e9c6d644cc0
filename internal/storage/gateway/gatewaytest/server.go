package gatewaytest

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/spec/vnode"
	"berth/internal/storage/gateway"
	"berth/internal/sys/proc"
	"berth/test/testkit"
)

// locks: what one node has locked, another cannot lock, unless locks hold within a node only.
func (s Suite) locks(t *testing.T) {
	if s.Single {
		return
	}
	source := s.Source(t)
	var beds [2]*bed
	var nodes [2]Node
	var dirs [2]int
	for i := range beds {
		var err error
		beds[i] = s.bed(t, source, vnode.Mount{})
		if nodes[i], err = beds[i].start(); err != nil {
			t.Fatal(err)
		}
		dirs[i], _ = beds[i].open()
	}
	whole := &unix.Flock_t{Type: unix.F_WRLCK}
	for name, lock := range map[string]func(fd int) error{
		"flock": func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) },
		"fcntl": func(fd int) error { return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, whole) },
	} {
		var fds [2]int
		for i := range fds {
			if err := as(Root, func() (err error) {
				fds[i], err = unix.Openat(dirs[i], name, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o644)
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		first, second := as(Root, func() error { return lock(fds[0]) }), as(Root, func() error { return lock(fds[1]) })
		if first != nil || (second == nil) != s.deviates(gateway.NodeLocks) || second != nil && !errors.Is(second, unix.EAGAIN) {
			t.Errorf("%s: the first node's lock %v, the second's %v", name, first, second)
		}
		unix.Close(fds[0])
		if err := as(Root, func() error { return lock(fds[1]) }); err != nil {
			t.Errorf("%s: after the first node closed the file: %v", name, err)
		}
		unix.Close(fds[1])
	}
	for i, b := range beds {
		unix.Close(dirs[i])
		nodes[i].Kill()
		b.end()
	}
}

// restarts: what was synced before the server's end is there after it, and the mount works on. A file that was open works on too,
// unless it ended with a daemon.
func (s Suite) restarts(t *testing.T) {
	if s.Restart == nil {
		return
	}
	b := s.bed(t, s.Source(t), vnode.Mount{})
	n, err := b.start()
	if err != nil {
		t.Fatal(err)
	}
	dir, root := b.open()
	defer unix.Close(dir)
	var open int
	write := func(text string, at int64) error {
		return as(root, func() error {
			_, err := unix.Pwrite(open, []byte(text), at)
			return errors.Join(err, unix.Fsync(open))
		})
	}
	if err := as(root, func() (err error) {
		open, err = unix.Openat(dir, "kept", unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o644)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := write("before ", 0); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	j := b.reopened()
	helpers := gateway.Helpers(j.Steps())
	replaced, watched := make(chan struct{}, len(helpers)), make(chan struct{}, len(helpers))
	for _, h := range helpers {
		go func() {
			gateway.Watch(ctx, h.Process(), func(ctx context.Context, _ proc.ID) (proc.ID, error) {
				return h.Process(), j.Redo(ctx, h)
			}, func(_ proc.ID, err error) {
				if err == nil {
					replaced <- struct{}{}
				}
			})
			watched <- struct{}{}
		}()
	}
	s.Restart(t)
	begun := time.Now()
	for _, h := range helpers {
		select {
		case <-replaced:
			if took := time.Since(begun); testkit.Measures() && took > 5*time.Second { // what docs/gateways.md promises
				t.Errorf("%s: its helper was replaced after %v", h, took)
			}
		case <-ctx.Done():
			t.Errorf("%s: its helper was not replaced", h)
		}
		b.noteHelpers(h)
	}
	want := "before after new"
	if err = write("after ", 7); s.deviates(gateway.DaemonEnds) {
		want = "before new"
		if !errors.Is(err, unix.ENOTCONN) {
			t.Errorf("a file that was open when its daemon ended: %v", err)
		}
	} else if err != nil {
		t.Errorf("a file that was open when the server ended: %v", err)
	}
	unix.Close(open)
	if out, err := n.Run("echo new >new; cat kept new"); err != nil || strings.TrimSpace(out) != want {
		t.Errorf("after the server's restart: %q, %v; want %q", out, err, want)
	}
	stop()
	for range helpers {
		<-watched
	}
	n.Kill()
	b.end()
}

// dies: when a node is killed while it writes, what it had synced is at the source, and nothing of the node is left.
func (s Suite) dies(t *testing.T) {
	source := s.Source(t)
	b := s.bed(t, source, vnode.Mount{})
	n, err := b.start()
	if err != nil {
		t.Fatal(err)
	}
	out, err := n.Run("dd if=/dev/zero of=synced bs=64k count=4 conv=fsync 2>/dev/null; (while :; do echo x; done) >unsynced 2>/dev/null & echo $!")
	if err != nil {
		t.Fatal(err)
	}
	writer, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		t.Fatal(err)
	}
	id, err := proc.Of(writer) // of this test: it is killed by its identity
	if err != nil {
		t.Fatal(err)
	}
	pidfd, err := id.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	n.Kill()
	if err := proc.Signal(pidfd, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	if err := proc.Wait(t.Context(), pidfd); err != nil {
		t.Error(err)
	}
	b.end()
	if info, err := os.Stat(source.Dir + "/synced"); err != nil || info.Size() != 4*64<<10 {
		t.Errorf("what the node had synced is at the source: %v, %v", info, err)
	}
}
