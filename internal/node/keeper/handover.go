package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/fault"
	"berth/internal/sys/fork"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
)

// handover is the state that the keeper leaves to the program that it becomes: whatever cannot be read from the disk,
// and descriptors.
type handover struct {
	Lock     int                     `json:"lock"`
	Listener int                     `json:"listener"`
	Pipes    []int                   `json:"pipes,omitempty"` // of logs, open until the new program has opened them
	Talks    []handedTalk            `json:"talks,omitempty"`
	Due      map[string]time.Time    `json:"due,omitempty"`
	Made     []string                `json:"made,omitempty"`
	Ended    map[int]unix.WaitStatus `json:"ended,omitempty"` // by pid
}

type handedTalk struct {
	FD int `json:"fd"`
	waiting
}

// patience is how long an upgrade waits for the work under way. Work that takes longer is cut off, as if the keeper were
// killed.
const patience = 5 * time.Second

// arguments are those of a keeper's command line.
func arguments(l layout.Layout, more ...string) []string {
	return append(append(l.Args(), "keeper"), more...)
}

// readHandover reads the state that the older program of this process left.
func readHandover(fd int) (*handover, error) {
	f := os.NewFile(uintptr(fd), "handover")
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	h := &handover{}
	if err := Decode(data, h); err != nil {
		return nil, err
	}
	for _, fd := range append([]int{h.Lock, h.Listener}, h.Pipes...) {
		unix.CloseOnExec(fd)
	}
	return h, nil
}

// resume continues the waits of an older program of this process, once the nodes are watched.
func (k *Keeper) resume(ctx context.Context) {
	if k.given == nil {
		return
	}
	for node, at := range k.given.Due {
		k.restartIn(ctx, node, max(time.Until(at), 0))
	}
	for _, node := range k.given.Made {
		k.stay(ctx, node)
	}
}

// resumeTalks is resume for connections, whose questions are about nodes that are watched.
func (k *Keeper) resumeTalks(ctx context.Context) {
	if k.given == nil {
		return
	}
	for _, given := range k.given.Talks {
		conn, err := connection(given.FD)
		if err != nil {
			k.Log.Error("take over a connection", "err", err)
			continue
		}
		k.hold(ctx, &talk{conn: conn, wait: given.waiting})
	}
	for _, fd := range k.given.Pipes {
		_ = unix.Close(fd)
	}
	k.given = nil
}

// upgrade makes this process another program: the pid, the children, the lock, the socket and the connections stay. It
// returns only if that fails.
func (k *Keeper) upgrade(from Version, files []*os.File) error {
	if own().newer(from) { // it may not know what it is given
		return refuse.Cannotf("kill the keeper; the next command starts one, but exit codes of nodes that run now are lost",
			"the keeper is %s and does not become %s, which is older", own(), from)
	}
	if len(files) != 1 {
		return errors.New("an upgrade needs one file, the program")
	}
	if err := trusted(files[0]); err != nil {
		return err
	}
	k.pause()
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		close(k.paused)
		k.paused = nil
	}()
	fault.Point("keeper pauses for an upgrade")
	k.acts()
	return k.become(files[0])
}

// trusted refuses a program that others than root could have written.
func trusted(program *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(program.Fd()), &st); err != nil {
		return fmt.Errorf("look at the program: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o111 == 0 {
		return refuse.Invalidf("the keeper becomes a program only")
	}
	if st.Uid != 0 || st.Mode&0o022 != 0 {
		return refuse.Cannotf("install berth so that only root can write it (chown root, chmod go-w)",
			"the keeper becomes no program that others than root can write: owner %d, mode %04o", st.Uid, st.Mode&0o7777)
	}
	return nil
}

// pause waits for the work under way, and lets no more begin.
func (k *Keeper) pause() {
	end := time.Now().Add(patience)
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.paused != nil || k.works > 0 && time.Now().Before(end) {
		k.mu.Unlock()
		time.Sleep(2 * time.Millisecond)
		k.mu.Lock()
	}
	k.paused = make(chan struct{})
}

// become executes the program. Descriptors that it shall have are copies, so that nothing changes if that fails; no child
// can begin meanwhile and inherit them.
func (k *Keeper) become(program *os.File) error {
	syscall.ForkLock.Lock()
	defer syscall.ForkLock.Unlock()
	h, copies, err := k.handOver()
	defer func() {
		for _, fd := range copies {
			_ = unix.Close(fd)
		}
	}()
	if err != nil {
		return err
	}
	data, err := json.Marshal(h)
	if err != nil {
		return err
	}
	state, err := unix.MemfdCreate("berth keeper", 0)
	if err != nil {
		return fmt.Errorf("hand over to the new program: %w", err)
	}
	copies = append(copies, state)
	if n, err := unix.Pwrite(state, data, 0); err != nil || n != len(data) {
		return fmt.Errorf("hand over to the new program: %d of %d bytes: %w", n, len(data), err)
	}
	argv := append([]string{"berth"}, arguments(k.layout, "--given", strconv.Itoa(state))...)
	err = syscall.Exec("/proc/self/fd/"+strconv.Itoa(int(program.Fd())), argv, os.Environ())
	return fmt.Errorf("execute the new program: %w", err)
}

// handOver collects the state that the new program needs.
func (k *Keeper) handOver() (h *handover, copies []int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	dup := func(fd uintptr) int {
		n, dupErr := unix.Dup(int(fd))
		if dupErr != nil {
			err = errors.Join(err, fmt.Errorf("hand over to the new program: %w", dupErr))
			return -1
		}
		copies = append(copies, n)
		return n
	}
	h = &handover{Pipes: k.Logs.Copies(), Due: k.due, Ended: fork.Kept()}
	copies = append(copies, h.Pipes...)
	h.Lock, h.Listener = control(k.lock, dup), control(k.listener, dup)
	for t, answering := range k.talks {
		if !answering {
			h.Talks = append(h.Talks, handedTalk{FD: control(t.conn, dup), waiting: t.wait})
		}
	}
	for node := range k.made {
		h.Made = append(h.Made, node)
	}
	for _, w := range k.watched {
		select {
		case <-w.ended: // its end was being noted for longer than an upgrade waits
			if w.Known {
				h.Ended[w.pid] = w.Status
			}
		default:
		}
	}
	return h, copies, err
}

// control calls f with the descriptor of a file or connection, which stays a nonblocking one.
func control(c syscall.Conn, f func(fd uintptr) int) (n int) {
	n = -1
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n = f(fd) })
	}
	return n
}
