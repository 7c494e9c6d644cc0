package gatewaytest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/spec/vnode"
	"berth/internal/storage/gateway"
	"berth/internal/sys/proc"
	"berth/test/testkit"
)

// helpers: the journal names each helper; one that is killed is replaced, and the mount works again; all end with the node.
func (s Suite) helpers(t *testing.T) {
	b := s.bed(t, s.Source(t), vnode.Mount{})
	if len(gateway.Helpers(b.steps())) == 0 {
		return // a gateway without a process: the steps above are all of it
	}
	n, err := b.start()
	if err != nil {
		t.Fatal(err)
	}
	dir, root := b.open()
	defer unix.Close(dir)
	var open int
	if err := as(root, func() (err error) { open, err = unix.Openat(dir, "file", unix.O_RDONLY|unix.O_CLOEXEC, 0); return err }); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(open)
	j := b.reopened()
	for _, h := range gateway.Helpers(j.Steps()) {
		if !h.Process().Alive() {
			t.Fatalf("%s: the journal says process %+v, which does not run", h, h.Process())
		}
		b.killedAndReplaced(h.Process(), func(ctx context.Context, ended proc.ID) (proc.ID, error) {
			if ended != h.Process() {
				t.Errorf("told of the end of %+v, not of %+v", ended, h.Process())
			}
			return h.Process(), j.Redo(ctx, h)
		})
		b.noteHelpers(h)
		if !h.Process().Alive() {
			t.Errorf("%s: its helper %+v does not run after it was replaced", h, h.Process())
		}
	}
	for _, h := range gateway.Helpers(b.reopened().Steps()) {
		if !h.Process().Alive() {
			t.Errorf("%s: the journal says process %+v, which does not run", h, h.Process())
		}
		if err := h.Verify(t.Context()); err != nil {
			t.Errorf("verify after it was replaced: %v", err)
		}
	}
	if _, err := unix.Pread(open, make([]byte, 1), 0); errors.Is(err, unix.ENOTCONN) != s.deviates(gateway.DaemonEnds) {
		t.Errorf("a file that was open when the helper was killed: %v", err)
	}
	out, err := n.Run("cat file; echo again >again; cat again")
	if got := strings.TrimSpace(out); err != nil || got != "data\nagain" {
		t.Errorf("after the helper was replaced: %q, %v", got, err)
	}
	n.Kill()
	b.end()
}

// killedAndReplaced kills a helper and waits until Watch has replaced it.
func (b *bed) killedAndReplaced(id proc.ID, replace func(context.Context, proc.ID) (proc.ID, error)) {
	b.t.Helper()
	ctx, stop := context.WithTimeout(b.t.Context(), testkit.Bound())
	defer stop()
	told := make(chan error, 1)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		gateway.Watch(ctx, id, replace, func(_ proc.ID, err error) { told <- err })
	}()
	pidfd, err := id.Open()
	if err != nil {
		b.t.Fatal(err)
	}
	defer pidfd.Close()
	if err := proc.Signal(pidfd, unix.SIGKILL); err != nil {
		b.t.Fatal(err)
	}
	select {
	case err := <-told:
		if err != nil {
			b.t.Errorf("replace the helper: %v", err)
		}
	case <-ctx.Done():
		b.t.Errorf("the helper %d was killed and not replaced", id.PID)
	}
	stop()
	<-watched
}
