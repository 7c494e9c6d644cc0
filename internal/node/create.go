package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host/block"
	"berth/internal/image"
	"berth/internal/node/events"
	"berth/internal/node/foreground"
	"berth/internal/node/history"
	"berth/internal/node/plan"
	"berth/internal/node/records"
	"berth/internal/runner"
	"berth/internal/runner/streams"
	"berth/internal/spec/vnode"
	"berth/internal/storage/gateway"
	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/proc"
	"berth/internal/sys/step"
)

// starter says how a node's runtime is started, and with which files.
type starter struct {
	start      func(context.Context, *runner.Launch) error // nil: by this process itself
	stdin      *os.File                                    // nil: /dev/null
	stdout     *os.File                                    // nil: the pipe to the node's log
	stderr     *os.File
	streams    *streams.Streams        // for berth run: these and no others; a nil file is a null device
	listen     func(path string) error // for berth run -t: opens the socket that takes the terminal
	before     func() error            // called when the init exists and has not started
	owner      *proc.ID                // of a node that ends with this process
	forRun     bool                    // the node ends with its command
	unfiltered bool                    // without a filter of system calls: to measure what it costs
}

// journals are a node's two journals as the process that wrote them knows them; nil: to be read.
type journals struct{ claims, live *step.Journal }

// create makes a node that is not there and starts it. Whatever fails, nothing is left.
func (b *Berth) create(ctx context.Context, l *lock, n *vnode.Node, s starter) (js journals, err error) {
	release, err := image.Open(b.Layout).Use(ctx, n.Image)
	if err != nil {
		return js, err
	}
	defer release() // not before: a command that looks for the image's users finds the layers in the live journal of a node that is up
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
	fault.Point("node folder made")
	if s.owner != nil {
		if err := os.WriteFile(dirs.Throwaway(), nil, 0o600); err != nil {
			return js, fmt.Errorf("make folder of node %s: %w", n.Name, errors.Join(err, os.RemoveAll(dirs.Lib)))
		}
		fault.Point("node marked")
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.destroy(context.WithoutCancel(ctx), n.Name, journals{}))
		}
	}()
	if js.claims, err = step.Create(dirs.Claims(), n.Name, facts.Host.BootID); err != nil {
		return js, err
	}
	if err := history.Begin(js.claims, s.owner); err != nil {
		return js, err
	}
	for _, c := range claims {
		if err := claim(ctx, js.claims, c); err != nil {
			return js, err
		}
	}
	err = b.Store(n.Name, &records.Stored{Applied: n, Now: n, Rights: b.rights, Covers: facts.Image.Content()})
	if err == nil {
		err = history.SetWhole(js.claims) // before its command can write
	}
	if err != nil {
		return js, err
	}
	if js.live, err = b.start(ctx, l, n, facts, js.claims, s); err != nil {
		return js, err
	}
	if err := js.claims.SetPhase(step.Up); err != nil {
		return js, err
	}
	history.Tell(b.Events(), js.claims, js.live, false)
	return js, nil
}

// claim makes one claim; files that it makes for the node belong to the ids that were claimed before it.
func claim(ctx context.Context, j *step.Journal, c step.Step) error {
	ids, err := plan.Range(j.Steps())
	if err == nil {
		plan.Own(c, ids)
		err = j.Do(ctx, c)
	}
	if err != nil {
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
	ids, err := plan.Range(claims.Steps())
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.Name, err)
	}
	dirs := b.Layout.Node(n.Name)
	if err := makeLiveDir(dirs.Run, ids.Base); err != nil { // if it is there, it is not this start's to clear
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.clear(context.WithoutCancel(ctx), n.Name, j))
		}
	}()
	for _, d := range []string{dirs.Root(), dirs.Stage()} {
		if err := makeLiveDir(d, ids.Base); err != nil {
			return nil, err
		}
	}
	if j, err = step.Create(dirs.Journal(), n.Name, facts.Host.BootID); err != nil {
		return j, err
	}
	if err := history.BeginRun(j); err != nil {
		return j, err
	}
	files, err := b.stdio(n.Name, &s)
	if err != nil {
		return j, err
	}
	defer closeAll(files)
	session := runner.Session{
		Files:      runner.Files{Stdin: s.stdin, Stdout: s.stdout, Stderr: s.stderr, Lock: l.f},
		Unfiltered: s.unfiltered, Launch: s.start, Created: s.before,
	}
	if s.listen != nil {
		session.Console = dirs.TTY()
		if err := s.listen(session.Console); err != nil {
			return j, err
		}
	}
	for i, st := range steps {
		session.Attach(st)
		if i == len(steps)-1 && b.hold.wait(ctx) == nil && ctx.Err() == nil { // the command runs from here on
			var done context.CancelFunc
			ctx, done = foreground.Starting(ctx)
			defer done()
		}
		if err := j.Do(ctx, st); err != nil {
			return j, fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	if block.Switches(steps) {
		if err := b.beside.Weigh(ctx); err != nil {
			return j, fmt.Errorf("node %s: weigh the others beside it: %w", n.Name, err)
		}
	}
	if err := j.SetPhase(step.Up); err != nil {
		return j, err
	}
	f, err := history.Of(claims)
	if err == nil {
		b.Note(b.StatusOf(n, facts, runner.FirstProcess(steps), j, f))
	}
	return j, err
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
	fault.Point("live folder made")
	return nil
}

// stdio opens the files that the node's command reads and writes, where the caller has not.
func (b *Berth) stdio(name string, s *starter) (opened []*os.File, err error) {
	if s.streams != nil {
		s.stdin, s.stdout, s.stderr = s.streams.In, s.streams.Out, s.streams.Err
		if s.start == nil {
			return nil, nil
		}
		return foreground.OpenNull(&s.stdin, &s.stdout, &s.stderr) // another process gets files only
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
		fault.Point("log's pipe made")
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
		_ = b.kill(ctx, name, j) // first: links of a dead node are gone much faster than those of a living one
		b.flushLog(ctx, name, true)
		if j.Set != nil && j.Set.Spec == replugging {
			_ = j.EndSet() // there is no way back to what was unplugged
		}
		steps := j.Steps() // those that are not undone yet
		err := j.Close(ctx)
		for _, lost := range gateway.Lost(steps) { // also if another step failed
			_ = b.Events().Append([]events.Event{{Time: time.Now(), Node: name, Event: events.Lost, Text: lost}}, false)
			b.tell(name, lost)
		}
		if err != nil {
			return err
		}
	}
	if err := os.RemoveAll(b.Layout.Node(name).Run); err != nil {
		return fmt.Errorf("remove live folder of node %s: %w", name, err)
	}
	fault.Point("live folder removed")
	return nil
}

// destroy removes a node altogether, whatever there is of it.
func (b *Berth) destroy(ctx context.Context, name string, known journals) error {
	live, err := readUnless(known.live, name, b.Live)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := b.clear(ctx, name, live); err != nil {
		return err
	}
	claims, err := readUnless(known.claims, name, b.Claims)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dirs := b.Layout.Node(name)
	if claims != nil {
		if history.Whole(claims) && claims.Phase == step.Creating { // else a power cut would leave it as one that is whole
			if err := claims.SetPhase(step.Removing); err != nil && !errors.Is(err, unix.ENOSPC) {
				return err
			}
		}
		if err := claims.Undo(ctx, func(step.Step) bool { return true }); err != nil {
			return err
		}
		history.TellRemoved(b.Events(), claims, known.claims == nil)
		if err := removeAllBut(dirs.Claims()); err != nil { // a folder without a journal belongs to a node that lost it
			return fmt.Errorf("remove files of node %s: %w", name, err)
		}
		if err := claims.Close(ctx); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(dirs.Lib); err != nil {
		return fmt.Errorf("remove folder of node %s: %w", name, err)
	}
	fault.Point("folder removed")
	if claims != nil && claims.Lasts {
		return file.SyncDir(b.Layout.LibNodes())
	}
	return nil
}

// removeAllBut removes all of a file's folder but the file.
func removeAllBut(path string) error {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != filepath.Base(path) {
			if err := os.RemoveAll(filepath.Join(filepath.Dir(path), e.Name())); err != nil {
				return err
			}
		}
	}
	fault.Point("files removed")
	return nil
}

// readUnless reads a journal, unless it is known and its file is as it was written.
func readUnless(known *step.Journal, name string, read func(string) (*step.Journal, error)) (*step.Journal, error) {
	if known != nil && known.Untouched() {
		return known, nil
	}
	return read(name)
}

func (b *Berth) remove(ctx context.Context, name string, known journals) error {
	claims, err := readUnless(known.claims, name, b.Claims)
	if err == nil && !claims.Empty() {
		if err := claims.SetPhase(step.Removing); err != nil && !errors.Is(err, unix.ENOSPC) {
			return b.onlyEnd(ctx, name, known.live, err)
		}
	}
	return b.destroy(ctx, name, journals{claims: claims, live: known.live})
}

// onlyEnd ends a node whose removal cannot be recorded, as on a disk that has turned read-only: its processes, and what it has in the kernel. The
// error says what is left.
func (b *Berth) onlyEnd(ctx context.Context, name string, live *step.Journal, why error) error {
	live, err := readUnless(live, name, b.Live)
	if err == nil {
		err = b.clear(ctx, name, live)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(fmt.Errorf("node %s runs no more, and is not removed: %w; its files and claims are left: berth rm --force %s removes them when the disk can be written again",
		name, why, name), err)
}
