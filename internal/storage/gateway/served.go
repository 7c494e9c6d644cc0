package gateway

import (
	"fmt"

	"berth/internal/sys/jsonfile"
	"berth/internal/sys/step"
)

// Served is a mount that a daemon serves, for functions that inspect a running node: the step notes the daemon's processes in a
// file.
type Served struct {
	Target string `json:"target"`
	Note   string `json:"note"` // the file; it is not there while no daemon runs
}

// ServedBy returns the mounts of a node's steps that daemons serve.
func ServedBy(steps []step.Step) []Served {
	var all []Served
	for _, s := range steps {
		if m, ok := s.(*SSHFSMount); ok {
			all = append(all, Served{Target: m.Target, Note: m.Note})
		}
	}
	return all
}

// Trouble says that no daemon serves the mount now; "" if one does.
func (s Served) Trouble() string {
	var d Daemon
	if err := (jsonfile.File{Path: s.Note}).Read(&d); err == nil && d.SSHFS.Alive() {
		return ""
	}
	return fmt.Sprintf("mount %s: its daemon does not run, so what is in it cannot be reached; the keeper starts another one when the file server answers", s.Target)
}
