package machine

import (
	"errors"
	"io"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/runner"
	"berth/test/testkit"
)

// TestCopierCannotRun: that the copier cannot run is no exit code of a user's command.
func TestCopierCannotRun(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", controlSocket(dir))
	testkit.Must(t, err)
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.WriteString(c, `{"failure":{"code":126,"why":"no memory"}}`+"\n")
		}
	}()
	_, err = copyIn(t.Context(), dir, []string{"{}", "/x", "x"}, nil, nil, nil)
	if _, of := errors.AsType[*runner.CommandError](err); of || err == nil || err.Error() != "cannot run the copier: no memory" {
		t.Errorf("the error is %v", err)
	}
}

// TestEnds: a command ended by its exit or by a signal, whatever the guest says.
func TestEnds(t *testing.T) {
	for says, want := range map[string]unix.WaitStatus{
		`{"end":{"code":3}}`:                3 << 8,
		`{"end":{"code":0,"signal":9}}`:     9,
		`{"end":{"code":1,"signal":127}}`:   1 << 8,
		`{"end":{"code":259,"signal":-77}}`: 3 << 8,
	} {
		line, monitor := pair(t)
		_, err := io.WriteString(monitor, says+"\n")
		testkit.Must(t, err)
		if got, err := (&child{c: line}).Wait(); got != want || err != nil {
			t.Errorf("%s: the status is %#x: %v", says, got, err)
		}
	}
}
