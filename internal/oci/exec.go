package oci

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/jsonfile"
	"berth/internal/refuse"
)

// Exec is one more command in a running node. It has the capabilities, seccomp filter, no-new-privileges flag, limits and
// groups of the node's process 1.
type Exec struct {
	Runtime Runtime
	State   string    // the runtime's --root
	ID      string    // the node's name
	PID     int       // the node's init
	Group   string    // folder of the node's v2 group, entered before the runtime starts; "": none
	V1      []V1Group // as in the node's Launch
	IDBase  uint32    // the host's id of the node's root
	Process *specs.Process

	Stdin, Stdout, Stderr *os.File           // pipes for this command; nil: a new null device
	Console               func(string) error // opens the socket at this path that receives the terminal; nil: no terminal
}

// ExecOptions are the settings that may differ from the node's process 1. A zero value means the same.
type ExecOptions struct {
	Args     []string
	Env      []string // NAME=value, added to or replacing the node's
	Cwd      string
	User     *User
	Terminal bool
	RLimits  map[string]uint64 // the current ones: berth set may have changed them since the start
}

// ExecProcess returns the process of one more command, based on the node's own specification.
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
