package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/block"
	"berth/internal/oci"
	"berth/internal/plan"
	"berth/internal/refuse"
	"berth/internal/relay"
	"berth/internal/step"
	"berth/internal/vnode"
)

// starter says how a node's runtime is started, and with which files.
type starter struct {
	start      func(context.Context, *oci.Launch) error // nil: by this process itself
	stdin      *os.File                                 // nil: /dev/null
	stdout     *os.File                                 // nil: the pipe to the node's log
	stderr     *os.File
	streams    *relay.Streams          // for berth run: these and no others; what is nil in them is a null device
	listen     func(path string) error // for berth run -t: opens the socket that takes the terminal
	before     func() error            // called when the init exists and has not started
	foreground *holder
	forRun     bool // the node ends with its command
	unfiltered bool // without a filter of system calls: to measure what it costs
}

// journals are a node's two journals as the process that wrote them knows them; nil: to be read.
type journals struct{ claims, live *step.Journal }

// create makes a node that is not there and starts it. Whatever fails, nothing is left.
func (b *Berth) create(ctx context.Context, l *lock, n *vnode.Node, s starter) (js journals, err error) {
	facts, err := b.facts(ctx, n)
	if err != nil {
		return js, err
	}
	claims, err := plan.Claims(n, facts)
	if err != nil {
		return js, err
	}
	// Everything that the planner can refuse is refused here, before anything is changed.
	if _, err := plan.Live(n, facts, claims); err != nil {
		return js, err
	}
	dirs := b.Layout.Node(n.Name)
	if err := os.Mkdir(dirs.Lib, 0o700); err != nil {
		return js, fmt.Errorf("make folder of node %s: %w", n.Name, err)
	}
	step.Fault("node folder made")
	defer func() {
		if err != nil {
			err = errors.Join(err, b.destroy(context.WithoutCancel(ctx), n.Name, journals{}))
		}
	}()
	if js.claims, err = step.Create(dirs.Claims(), n.Name, facts.Host.BootID); err != nil {
		return js, err
	}
	for _, c := range claims {
		if err := claim(ctx, js.claims, c); err != nil {
			return js, err
		}
	}
	if err := b.store(n.Name, &Stored{Applied: n, Now: n}); err != nil {
		return js, err
	}
	if js.live, err = b.start(ctx, l, n, facts, js.claims, s); err != nil {
		return js, err
	}
	return js, js.claims.SetPhase(step.Up)
}

// claim makes one claim; what it makes for the node belongs to the ids that were claimed before it.
func claim(ctx context.Context, j *step.Journal, c step.Step) error {
	plan.Own(c, plan.Range(j.Steps()))
	if err := j.Do(ctx, c); err != nil {
		return fmt.Errorf("node %s: %w", j.Node, err)
	}
	return nil
}

// start starts a node whose claims are made. If it fails, the node is as it was: not running.
func (b *Berth) start(ctx context.Context, l *lock, n *vnode.Node, facts plan.Facts, claims *step.Journal, s starter) (j *step.Journal, err error) {
	facts.TTY, facts.ForRun = s.listen != nil, s.forRun
	steps, err := plan.Live(n, facts, claims.Steps())
	if err != nil {
		return nil, err
	}
	dirs, owner := b.Layout.Node(n.Name), plan.Range(claims.Steps()).Base
	if err := makeLiveDir(dirs.Run, owner); err != nil { // if it is there, it is not this start's to clear
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.clear(context.WithoutCancel(ctx), n.Name, j))
		}
	}()
	for _, d := range []string{dirs.Root(), dirs.Stage()} {
		if err := makeLiveDir(d, owner); err != nil {
			return nil, err
		}
	}
	if j, err = step.Create(dirs.Journal(), n.Name, facts.Host.BootID); err != nil {
		return j, err
	}
	files, err := b.stdio(n.Name, &s)
	if err != nil {
		return j, err
	}
	defer closeAll(files)
	if s.listen != nil {
		if err := s.listen(dirs.TTY()); err != nil {
			return j, err
		}
	}
	var init *oci.Create
	switched := false
	for _, st := range steps {
		switch c := st.(type) {
		case *block.Engine:
			switched = true
		case *oci.Bundle:
			if s.unfiltered {
				c.Spec.Linux.Seccomp = nil
			}
		case *oci.Create:
			init = c
			c.Start = s.start
			c.Launch.Stdin, c.Launch.Stdout, c.Launch.Stderr = s.stdin, s.stdout, s.stderr
			c.Launch.Lock = l.f
			if s.listen != nil {
				c.Launch.ConsoleSocket = dirs.TTY()
			}
		case *oci.Start:
			if s.before != nil {
				if err := s.before(); err != nil {
					return j, err
				}
			}
		}
		if err := j.Do(ctx, st); err != nil {
			return j, fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	if switched {
		if err := b.weighBeside(ctx); err != nil {
			return j, fmt.Errorf("node %s: weigh the others beside it: %w", n.Name, err)
		}
	}
	if err := j.SetPhase(step.Up); err != nil {
		return j, err
	}
	b.setStatus(b.statusOf(n, facts, init, s.foreground, b.restarts(n.Name)))
	return j, nil
}

// makeLiveDir makes one of a node's live folders. The runtime passes through them as the node's root: hence the group.
func makeLiveDir(dir string, gid uint32) error {
	err := os.Mkdir(dir, 0o710)
	if err == nil {
		err = os.Chown(dir, 0, int(gid))
	}
	if err != nil {
		return fmt.Errorf("make a live folder: %w", err)
	}
	step.Fault("live folder made")
	return nil
}

func (b *Berth) statusOf(n *vnode.Node, f plan.Facts, init *oci.Create, fg *holder, restarts int) Status {
	return Status{
		Name: n.Name, State: Running, PID: init.PID, Start: init.StartTime, Boot: f.Host.BootID, Started: time.Now(),
		Image: n.Image.String(), Runtime: f.Runtime.String(), UserNS: n.UserNS(), InitKind: string(f.Command.Init), Foreground: fg,
		StopSignal: f.Image.Config.StopSignal, Restarts: restarts, Unsafe: unsafeDevices(n),
		Addresses: b.addresses(n), Wires: plan.Wires(n, plan.Facts{Layout: b.Layout}), MaySpoof: maySpoof(n),
	}
}

// restarts counts those by the restart policy; a node that was stopped begins anew.
func (b *Berth) restarts(name string) int {
	st, _ := b.status(name)
	if st.State == Stopped {
		return 0
	}
	return st.Restarts
}

// stdio opens what the node's command reads and writes, where the caller has not.
func (b *Berth) stdio(name string, s *starter) (opened []*os.File, err error) {
	if s.streams != nil {
		s.stdin, s.stdout, s.stderr = s.streams.In, s.streams.Out, s.streams.Err
		return nil, nil
	}
	if s.stdin == nil {
		if s.stdin, err = os.Open(os.DevNull); err != nil {
			return nil, err
		}
		opened = append(opened, s.stdin)
	}
	if s.stdout == nil {
		if s.stdout, err = b.log(name).Make(); err != nil {
			closeAll(opened)
			return nil, err
		}
		step.Fault("log's pipe made")
		opened = append(opened, s.stdout)
	}
	if s.stderr == nil {
		s.stderr = s.stdout
	}
	return opened, nil
}

// clear undoes a node's live steps and removes its live folder.
func (b *Berth) clear(ctx context.Context, name string, j *step.Journal) error {
	if j != nil {
		b.kill(ctx, name) // first: links of a dead node are gone much faster than those of a living one
		b.tellLog(ctx, name, endLog)
		if err := j.Close(ctx); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(b.Layout.Node(name).Run); err != nil {
		return fmt.Errorf("remove live folder of node %s: %w", name, err)
	}
	step.Fault("live folder removed")
	return nil
}

// destroy removes a node altogether, whatever there is of it.
func (b *Berth) destroy(ctx context.Context, name string, known journals) error {
	live, err := readUnless(known.live, name, b.liveJournal)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := b.clear(ctx, name, live); err != nil {
		return err
	}
	claims, err := readUnless(known.claims, name, b.claims)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if claims != nil {
		if err := claims.Close(ctx); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(b.Layout.Node(name).Lib); err != nil {
		return fmt.Errorf("remove folder of node %s: %w", name, err)
	}
	step.Fault("folder removed")
	return nil
}

// readUnless reads a journal, unless it is known and its file is as it was written.
func readUnless(known *step.Journal, name string, read func(string) (*step.Journal, error)) (*step.Journal, error) {
	if known != nil && known.Untouched() {
		return known, nil
	}
	return read(name)
}

// Start starts a stopped node; changed is false if it ran already.
func (b *Berth) Start(ctx context.Context, name string) (changed bool, err error) {
	l, err := b.lockNode(ctx, name)
	if err != nil {
		return false, err
	}
	defer l.release()
	if _, err := b.liveInit(name); err == nil {
		return false, b.watch(ctx, name)
	}
	s, err := b.stored(name)
	if err != nil {
		return false, err
	}
	return true, b.renew(ctx, l, s.Now, s)
}

// Remove removes a node and everything it wrote. A running one needs force.
func (b *Berth) Remove(ctx context.Context, name string, force bool) error {
	l, err := b.lockNode(ctx, name)
	if err != nil {
		return err
	}
	if _, err := b.liveInit(name); err == nil && !force {
		l.release()
		return refuse.Busyf("node %s is running; stop it, or remove it with --force", name)
	}
	if err := b.remove(ctx, name, journals{}); err != nil {
		l.release()
		return err
	}
	l.remove()
	return nil
}

func (b *Berth) remove(ctx context.Context, name string, known journals) error {
	claims, err := readUnless(known.claims, name, b.claims)
	if err == nil {
		if err := claims.SetPhase(step.Removing); err != nil && !errors.Is(err, unix.ENOSPC) {
			return err
		}
	}
	return b.destroy(ctx, name, journals{claims: claims, live: known.live})
}

// holderEnds is how long a berth run may take to end after its connections are closed.
const holderEnds = 10 * time.Second

// removeForeground removes what a killed berth run left. Its connection closes a moment before it counts as ended.
func (b *Berth) removeForeground(ctx context.Context, name string) error {
	if st, err := b.status(name); err == nil && st.Foreground != nil {
		if pidfd, err := openInit(st.Foreground.PID, st.Foreground.Start); err == nil {
			waitPidfd(pidfd, int(holderEnds.Milliseconds()))
			pidfd.Close()
		}
	}
	l, err := b.lockThere(ctx, name)
	if l == nil {
		return err
	}
	err = b.settle(ctx, name)
	b.unlockGone(name, l)
	l.release()
	return err
}

func createStep(j *step.Journal) *oci.Create {
	steps := j.Steps()
	i := slices.IndexFunc(steps, func(s step.Step) bool { _, ok := s.(*oci.Create); return ok })
	if i < 0 {
		return nil
	}
	return steps[i].(*oci.Create)
}
