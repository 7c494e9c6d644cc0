package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/jsonfile"
	"berth/internal/refuse"
)

// Exec is one more command in a running node, with the rights of its process 1: capabilities, seccomp filter, no new
// privileges, limits, groups.
type Exec struct {
	Runtime Runtime
	State   string    // the runtime's --root
	ID      string    // the node's name
	PID     int       // the node's init
	Group   string    // folder of the node's v2 group, entered before the runtime starts; "": none
	V1      []V1Group // as in the node's Launch
	Process *specs.Process
}

// ExecOptions is what may differ from the node's process 1. Zero values mean: the same.
type ExecOptions struct {
	Args     []string
	Env      []string // NAME=value, added to or replacing the node's
	Cwd      string
	User     *User
	Terminal bool
	RLimits  map[string]uint64 // as they are now: berth set may have changed them since the start
}

// ExecProcess makes the process of one more command from the node's own specification.
func ExecProcess(spec *specs.Spec, o ExecOptions) *specs.Process {
	p := *spec.Process
	p.Args, p.Terminal = o.Args, o.Terminal
	p.Env = mergeEnv(p.Env, o.Env)
	p.Cwd = orElse(o.Cwd, p.Cwd)
	if limits, err := rlimits(o.RLimits); err == nil && limits != nil { // the spec was valid when it was stored
		p.Rlimits = limits
	}
	if o.User != nil {
		p.User = specs.User{UID: o.User.UID, GID: o.User.GID, AdditionalGids: o.User.Additional}
	}
	if o.Terminal {
		p.Env = mergeEnv([]string{"TERM=xterm"}, p.Env)
	}
	return &p
}

// mergeEnv returns base with the variables of over added or replaced.
func mergeEnv(base, over []string) []string {
	merged := make([]string, 0, len(base)+len(over))
	at := map[string]int{}
	for _, list := range [][]string{base, over} {
		for _, e := range list {
			name, _, _ := strings.Cut(e, "=")
			if i, ok := at[name]; ok {
				merged[i] = e
				continue
			}
			at[name] = len(merged)
			merged = append(merged, e)
		}
	}
	return merged
}

// ReadSpec reads a node's specification from its bundle.
func ReadSpec(bundle string) (*specs.Spec, error) {
	var spec specs.Spec
	err := jsonfile.File{
		Path: filepath.Join(bundle, "config.json"), Is: "what the node's runtime was told",
		Remedy: "stop the node and start it: it is written anew",
	}.Read(&spec)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse.NotFoundf("no running node with the bundle %s", bundle)
	}
	return &spec, err
}

// Replace replaces this program by the runtime's exec, so that terminal, signals and exit code are the command's own.
// It returns only on failure, and then this process may be in the node's v2 group already.
//
// Errors: *CommandError if the command cannot run (found out beforehand, as the runtimes exit with 255 for it).
// There is no need to hide a hybrid hierarchy from crun here: only its create looks at it.
func (e *Exec) Replace() error {
	if err := checkCommand(e.PID, e.Process.Args, e.Process.Env, e.Process.Cwd); err != nil {
		return err
	}
	process, err := e.processFile()
	if err != nil {
		return err
	}
	runtime.LockOSThread() // for good: exec keeps the groups of the thread that calls it
	if _, err := enterV1(e.V1); err != nil {
		return err
	}
	if e.Group != "" {
		if err := os.WriteFile(filepath.Join(e.Group, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("enter the node's group: %w", err)
		}
	}
	if score := e.Process.OOMScoreAdj; score != nil { // crun sets it at create only
		if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(*score)), 0); err != nil {
			return fmt.Errorf("take the node's standing when memory is short: %w", err)
		}
	}
	if idle, err := IOIdle(e.PID); err == nil && idle { // as the node's process 1
		if err := setIOIdle(0); err != nil {
			return err
		}
	}
	if err := resetSignals(); err != nil {
		return err
	}
	args := []string{e.Runtime.Name}
	if len(e.V1) > 0 {
		args = append(args, "--cgroup-manager=disabled")
	}
	args = append(args, "--root", e.State, "exec", "--process", fmt.Sprintf("/proc/self/fd/%d", process), e.ID)
	env := []string{"PATH=" + defaultPath}
	if term := os.Getenv("TERM"); term != "" {
		env = append(env, "TERM="+term)
	}
	return fmt.Errorf("run %s: %w", e.Runtime.Path, syscall.Exec(e.Runtime.Path, args, env))
}

// processFile writes the process to a file in memory that the runtime inherits: nothing is left to remove.
func (e *Exec) processFile() (int, error) {
	b, err := json.Marshal(e.Process)
	if err != nil {
		return -1, fmt.Errorf("describe the command: %w", err)
	}
	fd, err := unix.MemfdCreate("berth-exec", 0)
	if err != nil {
		return -1, fmt.Errorf("make a file in memory: %w", err)
	}
	for done := 0; done < len(b); {
		n, err := unix.Pwrite(fd, b[done:], int64(done))
		if err != nil {
			return -1, fmt.Errorf("write to a file in memory: %w", err)
		}
		done += n
	}
	return fd, nil
}
