package copier

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
	"berth/internal/sys/treetar"
)

// Command is the hidden command of berth that is a copier.
const Command = "copier"

// Serve does one job in the node whose root is open as descriptor 3: words are the job, its Path and its Top. It returns the exit code.
func Serve(words []string) int {
	var j Job
	if err := json.Unmarshal([]byte(words[0]), &j); err != nil {
		fmt.Fprintln(os.Stderr, "berth: copier is started by berth cp and berth export")
		return int(refuse.Invalid)
	}
	j.Path, j.Top = words[1], words[2]
	for _, fd := range []int{rootFD, reportFD} {
		unix.CloseOnExec(fd)
	}
	unix.Close(programFD)
	report := json.NewEncoder(os.NewFile(reportFD, "report"))
	signal.Ignore(syscall.SIGPIPE) // the write fails, and that is reported
	ctx, cancel := context.WithCancel(context.Background())
	go watch(cancel)
	tally, err := j.serve(ctx, func(total int64) { _ = report.Encode(message{Total: total}) })
	end := message{Done: true, Tally: &tally}
	if err != nil {
		end.Kind, end.What, end.Broken = refuse.KindOf(err), []byte(err.Error()), errors.Is(err, unix.EPIPE)
		if r, ok := errors.AsType[*refuse.Error](err); ok && r.Error() == err.Error() {
			end.What, end.Remedy = []byte(r.What), []byte(r.Remedy)
		}
	}
	if report.Encode(end) != nil || err != nil {
		return 1
	}
	return 0
}

// watch ends the copy when the report has no reader any more: berth was killed, or gave up. A file system of the node's own
// may hold the copy in a read for ever, so the process ends after a while in any case.
func watch(cancel func()) {
	fds := []unix.PollFd{{Fd: reportFD}}
	for {
		if _, err := unix.Poll(fds, -1); err == nil || !errors.Is(err, unix.EINTR) {
			break
		}
	}
	cancel()
	os.Stdin.Close()
	time.Sleep(time.Second)
	_ = unix.Kill(os.Getpid(), unix.SIGKILL)
}

func (j *Job) serve(ctx context.Context, total func(int64)) (treetar.Tally, error) {
	files, err := treetar.OpenDescriptors() // now: the node's /proc does not show this process
	if err != nil {
		return treetar.Tally{}, err
	}
	defer files.Close()
	root, err := enter()
	if err != nil {
		return treetar.Tally{}, err
	}
	place := Place{Root: root, Path: j.Path, In: "node " + j.Node}
	if j.List {
		return treetar.Tally{}, place.list(os.Stdout)
	}
	if !j.Write {
		top, err := place.Find()
		if err != nil {
			return treetar.Tally{}, err
		}
		told := false
		tally, err := treetar.Pack(ctx, os.Stdout, top, treetar.From{
			Files: files, Top: j.Top, Harmless: j.Harmless, Measure: j.Measure, Bare: j.Bare, Owners: j.Bare,
			Progress: func(_, all int64) {
				if !told && all > 0 {
					total(all)
				}
				told = true
			},
		})
		return tally, place.about(err)
	}
	tally, err := treetar.Unpack(ctx, os.Stdin, treetar.To{
		Files: files, Place: place.For(j.Top, j.Exists), Top: j.Top, Owners: j.Owners, UID: j.UID, GID: j.GID, Harmless: j.Harmless,
	})
	if err != nil {
		_, _ = io.Copy(io.Discard, os.Stdin) // so that the other side fails with this error, not with a broken pipe
	}
	return tally, err
}

// enter makes the node's root this process's root, and gives up the rights that files do not need.
func enter() (root int, err error) {
	if err := unix.Fchdir(rootFD); err != nil {
		return -1, fmt.Errorf("enter the node's root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return -1, fmt.Errorf("enter the node's root: %w", err)
	}
	// All that follows happens on this thread.
	runtime.LockOSThread()
	var keep uint32
	for _, c := range []uint{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_SETFCAP} {
		keep |= 1 << c
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: keep, Permitted: keep}}
	err = errors.Join(
		unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0), unix.Capset(&head, &data[0]))
	if err != nil {
		return -1, fmt.Errorf("give up rights: %w", err)
	}
	return rootFD, nil
}
