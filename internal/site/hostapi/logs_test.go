package hostapi

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"

	"berth/internal/node/records"
	"berth/internal/site/api"
	"berth/internal/spec/template"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// taker takes a log. Each time that it has all that a file of the log has, it does the next of these acts.
type taker struct {
	bytes.Buffer
	then []func()
}

func (r *taker) ReadFrom(from io.Reader) (int64, error) {
	n, err := r.Buffer.ReadFrom(from)
	if len(r.then) > 0 {
		r.then[0]()
		r.then = r.then[1:]
	}
	return n, err
}

// TestOwnersOutput: who follows the output of a node of his own gets all of it, also what it says while it is removed, and nothing of another's node
// that comes in its place.
func TestOwnersOutput(t *testing.T) {
	l := layout.New(t.TempDir())
	h := Open(l, "berth")
	dirs := l.Node("job")
	job, err := template.Parse("/etc/berth/templates/job.yaml", []byte("node:\n  image: host\n  command: [/bin/true]\n"))
	testkit.Must(t, err)
	comes := func(owner, says string) {
		t.Helper()
		spec, err := job.Make(owner, "job", nil)
		testkit.Must(t, err)
		text, err := json.Marshal(records.Stored{Applied: spec, Now: spec})
		testkit.Must(t, err, os.MkdirAll(dirs.Lib, 0o700), os.WriteFile(dirs.Spec(), text, 0o600), os.WriteFile(dirs.Log(), []byte(says), 0o600))
	}
	goes := func() {
		t.Helper()
		testkit.Must(t, os.RemoveAll(dirs.Lib))
	}
	comes("ann", "begin ")
	log, err := os.OpenFile(dirs.Log(), os.O_WRONLY|os.O_APPEND, 0)
	testkit.Must(t, err)
	defer log.Close()
	nothing := func() {}
	got := &taker{then: []func(){nothing, func() {
		goes()
		_, err := log.WriteString("end")
		testkit.Must(t, err)
	}}}
	if err := h.Logs(t.Context(), "job", "ann", api.Logs{Lines: -1, Follow: true}, got); err != nil || got.String() != "begin end" {
		t.Errorf("of a node that is removed: %q, %v", got, err)
	}

	comes("ann", "ann's ")
	got = &taker{then: []func(){func() { goes(); comes("bob", "bob's") }}}
	if err := h.Logs(t.Context(), "job", "ann", api.Logs{Lines: -1, Follow: true}, got); refuse.KindOf(err) != refuse.NotFound || got.String() != "ann's " {
		t.Errorf("when another's node came in its place: %q, %v", got, err)
	}
	for _, follow := range []bool{false, true} {
		got = &taker{}
		if err := h.Logs(t.Context(), "job", "ann", api.Logs{Lines: -1, Follow: follow}, got); refuse.KindOf(err) != refuse.NotFound || got.Len() > 0 {
			t.Errorf("of another's node: %q, %v", got, err)
		}
	}
	if _, err := h.Node(t.Context(), "job", "ann"); refuse.KindOf(err) != refuse.NotFound || !strings.Contains(err.Error(), "job") {
		t.Errorf("another's node is shown: %v", err)
	}
}

// TestPullImageRefused: a short name means another image on each host, and is refused before anything is fetched.
func TestPullImageRefused(t *testing.T) {
	if _, err := Open(layout.New(t.TempDir()), "").PullImage(t.Context(), "debian:12", ""); refuse.KindOf(err) != refuse.Invalid {
		t.Errorf("%v", err)
	}
}
