package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/proof"
	"berth/internal/sys/refuse"
)

// A machine's memory is changed by its balloon (virtio 1.2, section 5.5): a driver in the guest that takes pages from its kernel, and
// tells the emulator, which gives them back to the host. It is the guest's good will. What the host promises of memory is the limit of
// the node's group.

// Resize is the step that changes how much memory the guest of a running machine has.
type Resize struct {
	proof.Limit
	Dir  string `json:"dir"`
	From int64  `json:"from"` // bytes
	To   int64  `json:"to"`   // bytes
}

// balloon is the mechanism by which a machine's memory changes.
const balloon = "balloon"

// askMemory asks for the guest's memory, after it was asked to have so many bytes, unless that is 0.
func askMemory(ctx context.Context, dir string, to int64, within time.Duration) (int64, error) {
	c, err := dial(ctx, dir)
	if err != nil {
		return 0, err
	}
	defer c.close()
	a, err := c.ask(ctx, &request{Do: doMemory, Memory: to}, nil, within)
	if err != nil {
		return 0, err
	}
	return a.Memory, a.failure("")
}

// Kind implements step.Step.
func (r *Resize) Kind() string { return "machine.resize" }

// String is "machine.memory 512MiB ⇒ 256MiB: balloon of the guest".
func (r *Resize) String() string {
	return fmt.Sprintf("%s %s ⇒ %s: %s of the guest", r.Key, vnode.Bytes(r.From), r.Asked, r.By)
}

// Proved implements proof.Prover.
func (r *Resize) Proved() []proof.Limit { return []proof.Limit{r.Limit} }

// Do asks the guest, and waits until it has done it.
func (r *Resize) Do(ctx context.Context) error {
	now, err := askMemory(ctx, r.Dir, r.To, longestResize+answerTime)
	if err != nil {
		return fmt.Errorf("ask the guest for memory: %w", err)
	}
	fault.Point("machine resized")
	if now != r.To {
		return fmt.Errorf("the guest still has %s, for %s: it uses its memory, or its kernel has no driver virtio_balloon", vnode.Bytes(now), still)
	}
	return nil
}

// Verify asks the emulator how much the guest has.
func (r *Resize) Verify(ctx context.Context) error {
	now, err := askMemory(ctx, r.Dir, 0, answerTime)
	if err != nil {
		return fmt.Errorf("read the guest's memory: %w", err)
	}
	r.ReadBack, r.Holds = vnode.Bytes(now).String(), now == r.To
	if !r.Holds {
		return fmt.Errorf("the guest has %s again", r.ReadBack)
	}
	return nil
}

// undoTime is how long Undo waits for the guest, or for a monitor that is frozen.
const undoTime = still + 2*time.Second

// Undo asks the guest to have what it had, and gives it time for that. A guest, or an emulator, that does not do it must not keep the node
// from being changed, stopped or removed: it was asked, and memory.max is the limit. A machine that has ended has taken it back.
func (r *Resize) Undo(ctx context.Context) error {
	c, err := dial(ctx, r.Dir)
	if errors.Is(err, errGone) || errors.Is(err, fs.ErrNotExist) || refuse.KindOf(err) == refuse.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.close()
	_, _ = c.ask(ctx, &request{Do: doMemory, Memory: r.From}, nil, undoTime)
	return nil
}
