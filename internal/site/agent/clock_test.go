package agent

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth/internal/host/membership"
	"berth/internal/node"
	"berth/internal/site/agentconf"
	"berth/internal/site/certs"
	"berth/internal/site/store"
	"berth/internal/spec/roles"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/test/env"
	"berth/test/testkit"
)

// TestRenewsByTheWallClock: a certificate is renewed when the wall clock says so, also if that was set, or went on while the host was suspended. One
// that is over is told in the log, with the way back.
func TestRenewsByTheWallClock(t *testing.T) {
	signer, err := certs.Init(filepath.Join(t.TempDir(), "ca"))
	testkit.Must(t, err)
	l := layout.New(t.TempDir())
	c := &agentconf.Config{Host: "a", Address: "a:7611", Site: "site", Certs: filepath.Join(t.TempDir(), "certs")}
	env.Certify(t, signer, c.Certs, "a", roles.Host)
	var said testkit.Output
	a := New(c, l, node.Open(l, node.Beside{}), store.NewMemory().Client(), slog.New(slog.NewTextHandler(&said, nil)))
	a.signer = signer
	begun := time.Now()
	var ahead atomic.Int64 // of the wall clock, which stands still otherwise
	clock := func() time.Time { return begun.Add(time.Duration(ahead.Load())) }
	pauses, look := make(chan time.Time), make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.renewInTime(ctx, clock, func(ctx context.Context, until time.Time) bool {
			select {
			case pauses <- until:
			case <-ctx.Done():
				return false
			}
			select {
			case <-look:
				return true
			case <-ctx.Done():
				return false
			}
		})
	}()
	defer func() { stop(); <-ended }()
	// looks lets it look at the clock, which is ahead by so much now, and returns what the log has of that.
	looks := func(now time.Duration, first bool) string {
		t.Helper()
		ahead.Store(int64(now))
		was := len(said.String())
		if !first {
			look <- struct{}{}
		}
		switch until := <-pauses; {
		case !until.After(clock()):
			t.Errorf("at %s it waits until %s", clock(), until)
		case until != until.Round(0):
			t.Errorf("it waits until %s, by the clock that stands still while the host is suspended", until)
		}
		return said.String()[was:]
	}
	const day = 24 * time.Hour
	first, err := certs.Current(c.Certs)
	testkit.Must(t, err)
	if text := looks(0, true); text != "" {
		t.Errorf("before its time: %s", text)
	}
	type step struct {
		ahead time.Duration
		says  string
	}
	follow := func(steps []step) {
		t.Helper()
		for _, next := range steps {
			if text := looks(next.ahead, false); !strings.Contains(text, next.says) || next.says == "" && text != "" {
				t.Errorf("after %s it says %q", next.ahead, text)
			}
		}
	}
	follow([]step{
		{10 * day, ""},
		{25 * day, "renewed this host's certificate"},
		{25*day + renewAgain/2, ""},
		{21 * day, "renewed this host's certificate"}, // the clock was set back
		{0, ""},
		{-time.Hour, "renewed this host's certificate"}, // one that is not valid yet was made by a clock that was ahead
		{0, ""},
	})
	if now, err := certs.Current(c.Certs); err != nil || now.Equal(first) {
		t.Errorf("the certificate is not renewed: %v", err)
	}
	a.signer = nil
	follow([]step{
		{26 * day, "certificate is not renewed; it is tried again"},
		{26*day + renewAgain - 1, ""},
		{26*day + renewAgain, "certificate is not renewed"},
		{40 * day, "certificate is over"},
		{40 * day, ""},
		{40*day + renewAgain, "berth certs renew a;"},
	})
}

// TestSilentSite: the log says that the cluster state was never reached, and that it refuses this host.
func TestSilentSite(t *testing.T) {
	l := layout.New(t.TempDir())
	var said testkit.Output
	s := &refusing{Store: store.NewMemory().Client()}
	c := &agentconf.Config{Host: "a", Address: "a:7611", Site: "site"}
	a := New(c, l, node.Open(l, node.Beside{}), s, slog.New(slog.NewTextHandler(&said, nil)))
	away, refused, denied := store.ErrAway, store.ErrRefused, store.ErrDenied
	s.why.Store(&away)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { a.attend(ctx); close(ended) }()
	defer func() { stop(); <-ended }()
	testkit.Eventually(t, "that the cluster state is away is told", func() bool { return strings.Contains(said.String(), "the cluster state does not answer") })
	s.why.Store(&refused)
	testkit.Eventually(t, "that it refuses is told", func() bool { return strings.Contains(said.String(), "the cluster state refuses what this host says") })
	if strings.Contains(said.String(), "certificate") {
		t.Errorf("of a store that is full, say, its certificate is told:\n%s", said.String())
	}
	s.why.Store(&denied)
	testkit.Eventually(t, "that it refuses this host is told", func() bool { return strings.Contains(said.String(), "the cluster state refuses this host") })
	s.why.Store(nil)
	testkit.Eventually(t, "that it answers is told", func() bool { return strings.Contains(said.String(), "the cluster state answers") })
	if n := strings.Count(said.String(), "level=WARN"); n != 3 {
		t.Errorf("%d warnings:\n%s", n, said.String())
	}
}

// refusing is a store that gives nobody a session while it has a reason.
type refusing struct {
	store.Store
	why atomic.Pointer[error]
}

func (r *refusing) Session(ctx context.Context, ttl time.Duration) error {
	if why := r.why.Load(); why != nil {
		return *why
	}
	return r.Store.Session(ctx, ttl)
}

// TestRenamedHost: a host that has another name than it joined by is no second host of its site: its agent does not start, and says how to go on.
func TestRenamedHost(t *testing.T) {
	signer, err := certs.Init(filepath.Join(t.TempDir(), "ca"))
	testkit.Must(t, err)
	root := testkit.Dir(t, "")
	l := layout.New(root)
	conf := func(host, certs string) *agentconf.Config {
		return &agentconf.Config{Host: host, Socket: l.AgentSocket(), Certs: filepath.Join(root, certs), Store: agentconf.Store{Endpoints: []string{"http://127.0.0.1:1"}}}
	}
	env.Certify(t, signer, filepath.Join(root, "certs"), "old", roles.Host)
	refused := func(c *agentconf.Config) {
		t.Helper()
		log := slog.New(slog.NewTextHandler(t.Output(), nil))
		for what, err := range map[string]error{"serve": Serve(t.Context(), c, l, log, nil), "leave": Leave(t.Context(), c, l, log)} {
			if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "write host: old into") {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	refused(conf("new", "certs"))
	alone := conf("new", "certs")
	alone.Local, alone.Store = true, agentconf.Store{Embedded: &agentconf.Embedded{}}
	release, err := hold(alone, l) // needs no certificate, whatever is in the folder
	testkit.Must(t, err)
	release()
	testkit.Must(t, membership.Join(l, membership.Member{Site: "site", Host: "old"}))
	refused(conf("new", "none"))
	for _, c := range []*agentconf.Config{conf("old", "certs"), conf("old", "none")} {
		release, err := hold(c, l)
		testkit.Must(t, err)
		another := *c
		another.Socket = filepath.Join(root, "other.sock")
		if _, err := hold(&another, l); refuse.KindOf(err) != refuse.Busy {
			t.Errorf("a second agent of the same root: %v", err)
		}
		release()
	}
	link := filepath.Join(root, "link") // as /var/run is one of /run
	testkit.Must(t, os.Symlink(filepath.Dir(l.AgentSocket()), link))
	same := conf("old", "certs")
	same.Socket = filepath.Join(link, filepath.Base(l.AgentSocket()))
	release, err = hold(same, l)
	testkit.Must(t, err)
	release()
}
