package access

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/node"
	"berth/internal/spec/roles"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestOwnersUnderTheLock: an operator's act is for a node of his own when it is done, not only when it was asked for: the owner is
// compared under the node's lock. Nobody waits for the lock of a node of another name.
func TestOwnersUnderTheLock(t *testing.T) {
	h := serve(t)
	fillin := func(owner, name string) error {
		_, err := h.nodes.ApplyTemplate(t.Context(), operator(owner), "job", name, nil, 0)
		return err
	}
	hold := func(name string) (release func()) {
		t.Helper()
		f, err := os.OpenFile(h.Layout().Lock(name), os.O_RDWR|os.O_CREATE, 0o600)
		testkit.Must(t, err)
		testkit.Must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
		return func() { testkit.Must(t, f.Close()) }
	}
	testkit.Must(t, fillin("bob", "job"))
	for what, do := range map[string]func(owner roles.Owner) error{
		"stop":    func(o roles.Owner) error { _, err := h.nodes.Stop(t.Context(), "job", node.OwnGrace, o); return err },
		"start":   func(o roles.Owner) error { _, err := h.nodes.Start(t.Context(), "job", o); return err },
		"restart": func(o roles.Owner) error { _, err := h.nodes.Restart(t.Context(), "job", node.OwnGrace, o); return err },
		"remove":  func(o roles.Owner) error { return h.nodes.Remove(t.Context(), "job", true, o) },
	} {
		if err := do("ann"); refuse.KindOf(err) != refuse.NotFound {
			t.Errorf("%s of bob's node by ann: %v", what, err)
		}
	}
	if err := fillin("ann", "job"); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("bob's name taken by ann: %v", err)
	}
	status, err := h.nodes.Node(t.Context(), "job", "")
	if err != nil || status.State != node.Running {
		t.Errorf("bob's node: %+v, %v", status, err)
	}

	testkit.Must(t, fillin("ann", "held"))
	release := hold("held")
	ended := begin(func() error { return fillin("ann", "held") })
	testkit.Must(t, fillin("bob", "other")) // would wait for ever
	select {
	case err := <-ended:
		t.Errorf("ann's node changed while its lock was held: %v", err)
	default:
	}
	release()
	select {
	case err := <-ended:
		testkit.Must(t, err)
	case <-time.After(testkit.Bound()):
		t.Error("ann's node does not get its lock")
	}
}

// begin does something beside the test.
func begin(do func() error) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- do() }()
	return ended
}
