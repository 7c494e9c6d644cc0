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

	"berth/internal/runner"
	"berth/internal/runner/first"
	"berth/internal/storage/mounts"
	"berth/internal/sys/file"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
)

// choice is the result of a probe.
type choice struct {
	Best   Runtime       `json:"best"`
	Tried  []result      `json:"tried"`
	BootID string        `json:"boot_id"` // the choice is valid for this boot
	Files  []fingerprint `json:"files"`   // and for these executables
}

// result is the result of one runtime.
type result struct {
	Runtime Runtime       `json:"runtime"`
	Median  time.Duration `json:"median_ns,omitempty"` // create and start of a trivial node
	Why     string        `json:"why,omitempty"`       // why it does not work; "" if it works
}

func (r result) String() string {
	if r.Why != "" {
		return fmt.Sprintf("%s does not work here: %s", r.Runtime, r.Why)
	}
	return fmt.Sprintf("%s starts a node in %.1f ms", r.Runtime, float64(r.Median)/float64(time.Millisecond))
}

// fingerprint identifies a program by attributes that an update changes.
type fingerprint struct {
	Path  string `json:"path"`
	Inode uint64 `json:"inode"`
	Size  int64  `json:"size"`
	MTime int64  `json:"mtime_ns"`
}

// choose returns the choice in the cache if it is still valid. Otherwise it probes and writes the cache.
func choose(ctx context.Context, t runner.Trial) (c *choice, err error) {
	if c := chosen(t); c != nil {
		return c, nil
	}
	bench, end, err := t.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	if c := chosen(t); c != nil { // another command was faster
		return c, nil
	}
	if c, err = probe(ctx, t, bench); err != nil {
		return nil, err
	}
	c.BootID = t.Boot
	text, err := json.MarshalIndent(c, "", "\t")
	if err == nil {
		err = file.WriteForBoot(t.Cache, text, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("remember the chosen runtime: %w", err)
	}
	return c, nil
}

// chosen returns the choice in the cache, or nil if it is of another boot or a runtime was installed, updated or removed since.
// It costs a few calls of stat.
func chosen(t runner.Trial) *choice {
	b, err := os.ReadFile(t.Cache)
	if err != nil {
		return nil
	}
	var c choice
	if json.Unmarshal(b, &c) != nil || c.BootID != t.Boot || c.Best.Path == "" || !slices.Equal(c.Files, fingerprints(paths())) {
		return nil
	}
	return &c
}

func fingerprints(found []Runtime) []fingerprint {
	var all []fingerprint
	for _, r := range found {
		var st unix.Stat_t
		if unix.Stat(r.Path, &st) == nil {
			all = append(all, fingerprint{Path: r.Path, Inode: st.Ino, Size: st.Size, MTime: st.Mtim.Nano()})
		}
	}
	return all
}

// probe runs a trivial node with every installed runtime in turn, set up like a real node (user namespace, overlay, seccomp
// and so on), and chooses the fastest that works. If none works, it refuses (Cannot) with the reasons.
func probe(ctx context.Context, t runner.Trial, bench runner.Bench) (*choice, error) {
	found, err := find(ctx)
	if err != nil {
		return nil, err
	}
	c := &choice{Files: fingerprints(found)}
	for _, r := range found {
		c.Tried = append(c.Tried, result{Runtime: r})
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
			d, err := try(ctx, r, t, bench)
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

// try runs the trivial node once and returns how long create and start took. It leaves nothing behind.
func try(ctx context.Context, r Runtime, t runner.Trial, bench runner.Bench) (took time.Duration, err error) {
	dir, err := os.MkdirTemp(t.Dir, runner.TrialPrefix)
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

	source, err := filepath.EvalSymlinks(bench.Program) // Debian's /bin is a link, and mounts refuses those
	if err != nil {
		return 0, fmt.Errorf("find the probe's program: %w", err)
	}
	program := filepath.Join(stage, "program")
	steps, err := r.Steps(runner.Spec{
		Node: "probe", Hostname: "probe", Args: append([]string{"/program"}, bench.Args...), Groups: bench.Groups,
		Dir: dir, State: filepath.Join(dir, "state"), PIDFile: filepath.Join(dir, "pid"), Log: filepath.Join(dir, "log"),
		Content: mounts.Plan{
			Dir: stage, IDs: t.IDs,
			Root:  mounts.Root{At: root, Lower: []string{image}, Memory: true},
			Stage: []mounts.Stage{{At: program, Source: source, ReadOnly: true}},
		},
		Mounts: []runner.Mount{{Source: program, Target: "/program", Type: "bind", Options: []string{"bind", "ro", "nosuid", "nodev"}}},
	})
	if err != nil {
		return 0, err
	}
	all := slices.Concat(steps.Create, steps.Start)
	session := runner.Session{Files: runner.Files{Stdout: out, Stderr: out, Lock: bench.Lock}}
	defer func() {
		for _, s := range slices.Backward(all) {
			err = errors.Join(err, s.Undo(context.WithoutCancel(ctx)))
		}
	}()
	began := time.Now()
	for _, s := range all {
		session.Attach(s)
		if err := s.Do(ctx); err != nil {
			return 0, err
		}
		if err := s.Verify(ctx); err != nil {
			return 0, err
		}
	}
	took = time.Since(began)
	if err := finished(ctx, runner.FirstProcess(all).First()); err != nil {
		return 0, err
	}
	fi, err := out.Stat()
	if err != nil {
		return 0, fmt.Errorf("read what the probe's node said: %w", err)
	}
	if fi.Size() == 0 {
		return 0, errors.New("its node ended without a word")
	}
	return took, nil
}

// finished waits for the end of the trivial node.
func finished(ctx context.Context, init proc.ID) error {
	pidfd, err := init.Open()
	if err == nil {
		defer pidfd.Close()
		ctx, cancel := context.WithTimeout(ctx, first.EndGrace)
		defer cancel()
		err = proc.Wait(ctx, pidfd)
	}
	if err != nil && !proc.Gone(err) {
		return fmt.Errorf("wait for the node's end: %w", err)
	}
	return nil
}
