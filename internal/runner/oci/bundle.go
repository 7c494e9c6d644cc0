package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/runner"
	"berth/internal/sys/fault"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/refuse"
)

// Bundle writes the runtime's configuration of a node to Dir/config.json. The journal does not hold the configuration.
type Bundle struct {
	Dir  string      `json:"dir"`
	Spec *specs.Spec `json:"-"` // nil in a step read from a journal
}

// Attach implements runner.Attacher.
func (s *Bundle) Attach(to *runner.Session) {
	if to.Unfiltered {
		s.Spec.Linux.Seccomp = nil
	}
}

// Kind implements step.Step.
func (s *Bundle) Kind() string { return "oci.bundle" }

func (s *Bundle) String() string {
	if s.Spec == nil {
		return s.config()
	}
	p := s.Spec.Process
	return fmt.Sprintf("%s: %d capabilities, %d mounts, command %q", s.config(), len(p.Capabilities.Bounding), len(s.Spec.Mounts), p.Args)
}

func (s *Bundle) config() string { return filepath.Join(s.Dir, "config.json") }

// Do implements step.Step.
func (s *Bundle) Do(context.Context) error {
	b, err := jsonfile.Marshal(s.Spec)
	if err != nil {
		return fmt.Errorf("write the runtime's configuration: %w", err)
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return fmt.Errorf("make the bundle: %w", err)
	}
	fault.Point("bundle's folder made")
	// The command line and the environment may hold secrets.
	if err := os.WriteFile(s.config(), b, 0o600); err != nil {
		return fmt.Errorf("write the runtime's configuration: %w", err)
	}
	return nil
}

// Verify implements step.Step.
func (s *Bundle) Verify(context.Context) error {
	b, err := os.ReadFile(s.config())
	if err != nil {
		return fmt.Errorf("read back the runtime's configuration: %w", err)
	}
	if !json.Valid(b) { // a full disk
		return fmt.Errorf("read back %s: it is cut off", s.config())
	}
	return nil
}

// Undo implements step.Step.
func (s *Bundle) Undo(context.Context) error {
	for _, p := range []string{s.config(), s.Dir} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the bundle: %w", err)
		}
	}
	return nil
}

// readSpec reads a node's specification from its bundle.
func readSpec(bundle string) (*specs.Spec, error) {
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
