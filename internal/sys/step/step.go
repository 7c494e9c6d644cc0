// Package step defines one change of the host, as data that can be printed, journalled, done, verified and undone. It knows
// no mechanism: cgroup, link, image, oci … each define their own steps.
package step

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"

	"berth/internal/sys/fault"
	"berth/internal/sys/jsonfile"
)

// Step is one change of the host. A step is a pointer to a struct whose exported (JSON) fields are its journal record. The
// record is enough to undo the step in another process, or in a newer berth. Callers hold the node's lock.
//
// The order is Prepare (if the step has one) → journal "begin" → Do → Verify → journal "done". A process may be killed
// between any two of these, so Undo must cope with a step that is begun but not done, half done, or already undone.
type Step interface {
	// Kind is the step's stable name in journals: "cgroup.group", "link.veth". It never changes its meaning.
	Kind() string
	// String is the step's one line in a plan, without its kind: what will be made or changed, with the values.
	String() string
	// Do makes the change. It may fill in fields (an ifindex, an inode): they are journalled after it.
	Do(ctx context.Context) error
	// Verify reads the change back from the kernel.
	Verify(ctx context.Context) error
	// Undo takes the change back. It is idempotent: it returns nil when nothing is left to undo. It identifies what it
	// removes by values that are never reused (ifindex, inode, start time), so that it never removes another's.
	Undo(ctx context.Context) error
}

// Preparer is a step that changes something that exists already. Prepare records the original state in the step's fields,
// before the first write and before the step is journalled. It changes nothing.
type Preparer interface {
	Prepare(ctx context.Context) error
}

// Kinds maps each kind to a function that makes an empty step, for reading journals. Each mechanism exports its own.
type Kinds map[string]func() Step

// Join merges several sets of kinds. A kind that occurs twice is a programming error and panics.
func Join(sets ...Kinds) Kinds {
	all := Kinds{}
	for _, s := range sets {
		for k := range s {
			if _, twice := all[k]; twice {
				panic("step kind twice: " + k)
			}
		}
		maps.Copy(all, s)
	}
	return all
}

// Decode reads one step from its journal record.
func (k Kinds) Decode(kind string, data json.RawMessage) (Step, error) {
	empty, ok := k[kind]
	if !ok {
		return nil, fmt.Errorf("unknown step %q: was it journalled by a newer berth?", kind)
	}
	s := empty()
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("step %s: %s", kind, jsonfile.Wrong(data, err))
	}
	return s, nil
}

// BootID reads the id of this boot of the host. The effect of a step in the kernel lasts as long as the boot.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return fault.Boot(strings.TrimSpace(string(id))), nil
}
