package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/mounts"
	"berth/internal/refuse"
	"berth/internal/step"
)

// Trial describes what a probe runs, and where.
type Trial struct {
	Dir     string   // an existing folder that the node's ids can reach (all parents searchable by others); for a new folder in it
	Program string   // a static program of the host
	Args    []string // its arguments; it must print something and end
	IDs     mounts.IDs
	Group   string        // cgroups path of the trials only; the caller makes it, if Adapt needs it, and removes it
	Adapt   func(*Launch) // adapts a launch to this host: how it enters its groups, what is hidden from it; nil: no change
	Rounds  int           // number of runs of each runtime; 0 means 5
	Lock    *os.File      // see Launch.Lock; may be nil
}

const (
	probePrefix = "probe-" // begins the names of the folders of probes
	unwritten   = ".tmp"   // ends the name of a cache that is not complete yet
)

// ProbeLeft returns the files and folders that killed probes left in dir and beside the cache. No probe may be running.
func ProbeLeft(dir, cache string) []string {
	left, _ := filepath.Glob(filepath.Join(dir, probePrefix+"*"))
	if _, err := os.Lstat(cache + unwritten); err == nil {
		left = append(left, cache+unwritten)
	}
	return left
}

// Choice is the result of a probe.
type Choice struct {
	Best   Runtime  `json:"best"`
	Tried  []Result `json:"tried"`
	BootID string   `json:"boot_id"` // the choice is valid for this boot
	Files  []file   `json:"files"`   // and for these executables
}

// Result is the result of one runtime.
type Result struct {
	Runtime Runtime       `json:"runtime"`
	Median  time.Duration `json:"median_ns,omitempty"` // create and start of a trivial node
	Why     string        `json:"why,omitempty"`       // why it does not work; "" if it works
}

func (r Result) String() string {
	if r.Why != "" {
		return fmt.Sprintf("%s does not work here: %s", r.Runtime, r.Why)
	}
	return fmt.Sprintf("%s starts a node in %.1f ms", r.Runtime, float64(r.Median)/float64(time.Millisecond))
}

// file identifies an executable by attributes that an update changes.
type file struct {
	Path  string `json:"path"`
	Inode uint64 `json:"inode"`
	Size  int64  `json:"size"`
	MTime int64  `json:"mtime_ns"`
}

// Choose returns the choice in the cache if it is still valid (Chosen). Otherwise it probes and writes the cache.
func Choose(ctx context.Context, cache, bootID string, t Trial) (*Choice, error) {
	if c := Chosen(cache, bootID); c != nil {
		return c, nil
	}
	c, err := Probe(ctx, t)
	if err != nil {
		return nil, err
	}
	c.BootID = bootID
	b, err := json.MarshalIndent(c, "", "\t")
	if err != nil {
		return nil, fmt.Errorf("remember the chosen runtime: %w", err)
	}
	// Renamed into place, because other commands may read it at the same time.
	tmp := cache + unwritten
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return nil, fmt.Errorf("remember the chosen runtime: %w", err)
	}
	step.Fault("choice written")
	if err := os.Rename(tmp, cache); err != nil {
		return nil, fmt.Errorf("remember the chosen runtime: %w", err)
	}
	return c, nil
}

// Chosen returns the choice in cache, or nil if it is of another boot or a runtime was installed, updated or removed since.
// It costs a few calls of stat.
func Chosen(cache, bootID string) *Choice {
	b, err := os.ReadFile(cache)
	if err != nil {
		return nil
	}
	var c Choice
	if json.Unmarshal(b, &c) != nil || c.BootID != bootID || c.Best.Path == "" || !slices.Equal(c.Files, files(paths())) {
		return nil
	}
	return &c
}

func files(found []Runtime) []file {
	var all []file
	for _, r := range found {
		var st unix.Stat_t
		if unix.Stat(r.Path, &st) == nil {
			all = append(all, file{Path: r.Path, Inode: st.Ino, Size: st.Size, MTime: st.Mtim.Nano()})
		}
	}
	return all
}

// Probe runs a trivial node with every installed runtime in turn, set up like a real node (user namespace, overlay, seccomp
// and so on), and chooses the fastest that works. If none works, it refuses (Cannot) with the reasons.
func Probe(ctx context.Context, t Trial) (*Choice, error) {
	found, err := Find(ctx)
	if err != nil {
		return nil, err
	}
	c := &Choice{Files: files(found)}
	for _, r := range found {
		c.Tried = append(c.Tried, Result{Runtime: r})
	}
	times := make([][]time.Duration, len(found))
	if t.Rounds == 0 {
		t.Rounds = 5
	}
	for range t.Rounds { // interleaved, so that other load on the host affects all alike
		for i, r := range found {
			if c.Tried[i].Why != "" {
				continue
			}
			d, err := t.run(ctx, r)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				c.Tried[i].Why = err.Error()
				continue
			}
			times[i] = append(times[i], d)
		}
	}
	var whys []string
	best := -1
	for i := range c.Tried {
		r := &c.Tried[i]
		if r.Why != "" {
			whys = append(whys, r.String())
			continue
		}
		slices.Sort(times[i])
		r.Median = times[i][len(times[i])/2]
		// By the fastest run, not the median: other load on the host only adds time.
		if best < 0 || times[i][0] < times[best][0] {
			best = i
		}
	}
	if best < 0 {
		return nil, refuse.Cannotf("see berth doctor", "no OCI runtime works on this host: %s", strings.Join(whys, "; "))
	}
	c.Best = c.Tried[best].Runtime
	return c, nil
}

// run runs the trivial node once and returns how long create and start took. It leaves nothing behind.
func (t *Trial) run(ctx context.Context, r Runtime) (took time.Duration, err error) {
	dir, err := os.MkdirTemp(t.Dir, probePrefix)
	if err != nil {
		return 0, fmt.Errorf("make a folder for the probe: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	stage, root, image := filepath.Join(dir, "stage"), filepath.Join(dir, "root"), filepath.Join(dir, "image")
	for _, d := range []string{dir, stage, root, image} {
		if err := os.MkdirAll(d, 0o711); err != nil {
			return 0, fmt.Errorf("make a folder for the probe: %w", err)
		}
		if err := os.Chmod(d, 0o711); err != nil { // MkdirTemp made it 0700
			return 0, fmt.Errorf("make a folder for the probe: %w", err)
		}
	}
	out, err := os.Create(filepath.Join(dir, "out"))
	if err != nil {
		return 0, fmt.Errorf("make a file for the probe: %w", err)
	}
	defer out.Close()

	source, err := filepath.EvalSymlinks(t.Program) // Debian's /bin is a link, and mounts refuses those
	if err != nil {
		return 0, fmt.Errorf("find the probe's program: %w", err)
	}
	program := filepath.Join(stage, "program")
	spec, err := Config(Input{
		Hostname: "probe", Args: append([]string{"/program"}, t.Args...), Rootfs: root,
		IDBase: t.IDs.Base, IDSize: t.IDs.Size, CgroupsPath: t.Group,
		Mounts: []Mount{{Source: program, Target: "/program", Type: "bind", Options: []string{"bind", "ro", "nosuid", "nodev"}}},
	})
	if err != nil {
		return 0, err
	}
	l := Launch{
		Runtime: r, State: filepath.Join(dir, "state"), ID: "probe", Bundle: filepath.Join(dir, "bundle"),
		PIDFile: filepath.Join(dir, "pid"), Log: filepath.Join(dir, "log"), Stdout: out, Stderr: out, Lock: t.Lock,
		Plan: mounts.Plan{
			Dir: stage, IDs: t.IDs,
			Root:  mounts.Root{At: root, Lower: []string{image}, Memory: true},
			Stage: []mounts.Stage{{At: program, Source: source, ReadOnly: true}},
		},
	}
	if t.Adapt != nil {
		t.Adapt(&l)
	}
	bundle := &Bundle{Dir: l.Bundle, Spec: spec}
	create := &Create{Launch: l, CgroupsPath: t.Group}
	start := &Start{Launch: l, Args: spec.Process.Args, Env: spec.Process.Env, Cwd: spec.Process.Cwd}
	defer func() {
		clean := context.WithoutCancel(ctx)
		err = errors.Join(err, create.Undo(clean), bundle.Undo(clean))
	}()
	if err := bundle.Do(ctx); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := create.Do(ctx); err != nil {
		return 0, err
	}
	if err := start.Do(ctx); err != nil {
		return 0, err
	}
	if err := start.Verify(ctx); err != nil {
		return 0, err
	}
	took = time.Since(began)
	return took, finished(ctx, create, out)
}

// finished waits for the end of the trivial node and checks that it printed something.
func finished(ctx context.Context, create *Create, out *os.File) error {
	fd, err := unix.PidfdOpen(create.PID, 0)
	if err == nil {
		defer unix.Close(fd)
		if err := waitEnd(ctx, fd, create.PID); err != nil {
			return err
		}
	} else if !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("open process %d: %w", create.PID, err)
	}
	fi, err := out.Stat()
	if err != nil {
		return fmt.Errorf("read what the probe's node said: %w", err)
	}
	if fi.Size() == 0 {
		return errors.New("its node ended without a word")
	}
	return nil
}
