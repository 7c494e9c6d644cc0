package keeper

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/node/nodelog"
	"berth/internal/sys/fork"
	"berth/internal/sys/layout"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/internal/sys/version"
	"berth/test/testkit"
)

// TestMain is also the keeper that the tests start: this program with the arguments of a keeper.
func TestMain(m *testing.M) {
	if len(os.Args) < 4 || os.Args[1] != "--root" || os.Args[3] != "keeper" {
		os.Exit(m.Run())
	}
	given, ready := -1, os.NewFile(3, "ready")
	if len(os.Args) == 6 {
		ready = nil
		fmt.Sscan(os.Args[5], &given)
	}
	l := layout.New(os.Args[2])
	text, _ := os.ReadFile(filepath.Join(l.Run, "version"))
	version.Berth = string(text)
	k, err := Open(context.Background(), l, given)
	if err == nil && k != nil {
		err = k.Serve(context.Background(), scripts(l.Run), nil, ready)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// scripts are nodes that are shell scripts. What the keeper knows of them is in files of this folder.
type scripts string

func (s scripts) file(kind, node string) string { return filepath.Join(string(s), kind+"."+node) }

func (s scripts) Names() (names []string, err error) {
	all, err := filepath.Glob(s.file("first", "*"))
	for _, path := range all {
		names = append(names, strings.TrimPrefix(filepath.Base(path), "first."))
	}
	return names, err
}

func (s scripts) First(node string) (id proc.ID, err error) {
	text, err := os.ReadFile(s.file("first", node))
	if err == nil {
		_, err = fmt.Sscan(string(text), &id.PID, &id.Start)
	}
	return id, err
}

func (s scripts) Launch(_ context.Context, node string, launch json.RawMessage, _ [4]*os.File, _ *os.File) error {
	var script string
	if err := Decode(launch, &script); err != nil {
		return err
	}
	out, err := fork.Output(exec.Command("/bin/sh", "-c", "("+script+") >/dev/null & echo $!"))
	if err != nil {
		return err
	}
	var pid int
	fmt.Sscan(string(out), &pid)
	id, err := proc.Of(pid)
	if err != nil {
		return err
	}
	return os.WriteFile(s.file("first", node), fmt.Appendln(nil, id.PID, id.Start), 0o600)
}

func (s scripts) Ended(_ context.Context, node string, _ int, e Ending) (time.Duration, error) {
	return 0, os.Rename(s.file("first", node), s.file(fmt.Sprintf("ended-%v-%d", e.Known, e.Status.ExitStatus()), node))
}

func (s scripts) Abandoned(_ context.Context, node string) error {
	return os.WriteFile(s.file("abandoned", node), nil, 0o600)
}

func (s scripts) Due(string) time.Duration                               { return 0 }
func (s scripts) Log(node string) nodelog.Log                            { return nodelog.Log{Pipe: s.file("pipe", node)} }
func (s scripts) Made(context.Context, string) bool                      { return true }
func (s scripts) Restart(context.Context, string) (time.Duration, error) { return 0, nil }
func (s scripts) Stop(context.Context, string, time.Duration) error      { return nil }

// TestUpgradeInPlace upgrades a keeper while a node runs, a command waits for its end, and another holds a guard.
func TestUpgradeInPlace(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := testkit.Dir(t, "")
	l := layout.New(dir)
	must := func(err error) {
		t.Helper()
		if err != nil {
			log, _ := os.ReadFile(l.KeeperLog())
			t.Fatalf("%v\n%s", err, log)
		}
	}
	must(l.Make())
	was := version.Berth
	defer func() { version.Berth = was }()
	is := func(v string) {
		version.Berth = v
		must(os.WriteFile(filepath.Join(l.Run, "version"), []byte(v), 0o600))
	}
	c, nodes, ctx := Client{Layout: l}, scripts(l.Run), t.Context()
	null, err := os.Open(os.DevNull)
	must(err)
	defer null.Close()

	is("v1")
	must(c.Create(ctx, "n", "while [ ! -e "+nodes.file("go", "n")+" ]; do sleep 0.01; done; exit 7", [4]*os.File{null, null, null, null}))
	must(c.Watch(ctx, "n"))
	first, err := nodes.First("n")
	must(err)
	guard, err := c.Guard(ctx, "g")
	must(err)
	waits, err := c.dial(ctx)
	must(err)
	defer waits.Close()
	must(send(waits, request{Hello: own(), Do: doExit, Node: "n", PID: first.PID}))
	time.Sleep(100 * time.Millisecond) // so that it waits when the upgrade comes

	// A program that the kernel cannot execute: the keeper goes on as it was, with all that it waits for.
	broken := filepath.Join(dir, "broken")
	must(os.WriteFile(broken, []byte("no program"), 0o755))
	program, err := os.Open(broken)
	must(err)
	defer program.Close()
	if _, err := c.ask(ctx, request{Do: doUpgrade}, program); err == nil || !strings.Contains(err.Error(), "execute the new program") {
		t.Errorf("upgrade to what is no program: %v", err)
	}
	must(c.Watch(ctx, "n"))

	// A limit that the new program cannot take off where it lacks CAP_SYS_RESOURCE: it watches the nodes all the same.
	var keeper *unix.Ucred
	control(waits, func(fd uintptr) (n int) {
		keeper, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		return 0
	})
	must(err)
	must(unix.Prlimit(int(keeper.Pid), unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1 << 40, Max: 1 << 40}, nil))

	is("v2")
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			if err := c.Watch(ctx, "n"); err != nil {
				t.Error(err)
			}
			if err := c.Upgrade(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	var has unix.Rlimit
	must(unix.Prlimit(int(keeper.Pid), unix.RLIMIT_FSIZE, nil, &has))
	if has.Max == 1<<40 {
		err := c.Create(ctx, "m", "true", [4]*os.File{null, null, null, null})
		if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "the keeper starts no nodes: ") {
			t.Errorf("a node with the keeper's limit: %v", err)
		}
	}
	is("v1")
	if err := c.Upgrade(ctx); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("an older program upgrades the keeper: %v", err)
	}
	must(c.Watch(ctx, "n")) // the same protocol: it works with the newer keeper

	must(os.WriteFile(nodes.file("go", "n"), nil, 0o600))
	p, err := receive(waits, nil, nil)
	must(err)
	var r reply
	must(Decode(p.data, &r))
	if !r.Known || r.Status != 7<<8 || r.Hello.Berth != "v2" {
		t.Errorf("how the node ended: %+v, want exit status 7 from v2", r)
	}
	waits.Close()
	guard.Close()
	for _, path := range []string{nodes.file("abandoned", "g"), nodes.file("ended-true-7", "n")} {
		there := func() bool { _, err := os.Stat(path); return err == nil }
		testkit.Eventually(t, path+" is there", there)
	}
	testkit.Eventually(t, "the keeper ends", func() bool { return !c.Runs() })
	if log, _ := os.ReadFile(l.KeeperLog()); strings.Contains(string(log), "level=ERROR") {
		t.Errorf("the keeper said:\n%s", log)
	}
}
