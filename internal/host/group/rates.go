package group

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"berth/internal/host"
	"berth/internal/sys/proc"
)

// LiftRates takes all rates of block I/O off a group and the groups inside it, and returns them as they were, in the words of
// their files: "blkio.throttle.write_bps_device=8:0 100000". A request that waits behind a rate keeps its process, which even
// SIGKILL does not end before the request is done. Requests that wait go to the disk at once: the kernel looks again at what
// a group may dispatch when its rates change (block/blk-throttle.c: tg_conf_updated).
func LiftRates(h host.Cgroups, path string) (lifted []string, err error) {
	return liftRates(places(h, path))
}

// Lift is LiftRates for a caller that kills the group's processes next. said tells a person which rates were lifted; it is ""
// if no process waited behind them. lifted is false if there were no rates.
func Lift(h host.Cgroups, path string) (lifted bool, said string) {
	held := Waiting(h, path)
	rates, err := LiftRates(h, path)
	switch {
	case err != nil:
		said = fmt.Sprintf("its rates of block I/O could not be lifted, and may hold up its end: %v", err)
	case len(rates) > 0 && len(held) > 0:
		said = fmt.Sprintf("lifted its rates of block I/O (%s), so that it can end: %s", strings.Join(rates, ", "), strings.Join(held, ", "))
	}
	return len(rates) > 0, said
}

// endLook is how often LiftOnEnd looks whether a process is ending: the kernel has no event before it has ended.
const endLook = 200 * time.Millisecond

// LiftOnEnd calls lift, which lifts the rates of a node, as soon as its first process is ending: the kernel kills all others of it
// then, and waits for each (kernel/pid_namespace.c: zap_pid_ns_processes). The caller calls done when that process has ended.
func LiftOnEnd(first proc.ID, lift func()) (done func()) {
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-over:
				return
			case <-time.After(endLook):
			}
			if first.Ending() {
				lift()
				return
			}
		}
	}()
	return func() { close(over); <-ended }
}

func liftRates(in []place) (lifted []string, err error) {
	var errs []error
	for _, p := range in {
		var files []string
		switch {
		case p.V2:
			files = []string{"io.max"}
		case p.Has("blkio"):
			files = []string{
				"blkio.throttle.read_bps_device", "blkio.throttle.read_iops_device",
				"blkio.throttle.write_bps_device", "blkio.throttle.write_iops_device",
			}
		default:
			continue
		}
		inner, err := groupsIn(p.dir)
		errs = append(errs, err)
		for _, dir := range append(inner, p.dir) {
			for _, name := range files {
				was, err := liftIn(filepath.Join(dir, name), p.V2)
				lifted, errs = append(lifted, was...), append(errs, err)
			}
		}
	}
	return lifted, errors.Join(errs...)
}

// liftIn takes the rates off in one control file, which has a line for each disk.
func liftIn(file string, v2 bool) (lifted []string, err error) {
	none := "0"
	if v2 {
		none = "rbps=max wbps=max riops=max wiops=max"
	}
	text, err := ReadFile(file)
	if Gone(err) {
		return nil, nil
	}
	var errs []error
	for line := range strings.Lines(text) {
		disk, _, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		if err := WriteFile(file, disk+" "+none); err != nil && !Gone(err) { // a disk that is unplugged holds nothing
			errs = append(errs, err)
			continue
		}
		lifted = append(lifted, filepath.Base(file)+"="+strings.TrimSpace(line))
	}
	return lifted, errors.Join(append(errs, err)...)
}

// Waiting describes the processes of a group, and of the groups inside it, that wait in the kernel and cannot be killed
// meanwhile: `process 12 "dd" waits in blkdev_direct_IO`.
func Waiting(h host.Cgroups, path string) []string {
	pids, _ := Procs(h, path) // without an answer none is known
	return waiting(pids)
}

func waiting(pids []int) (all []string) {
	for _, pid := range pids {
		if where := proc.Waits(pid); where != "" {
			all = append(all, fmt.Sprintf("process %d %q waits in %s", pid, proc.Name(pid), where))
		}
	}
	return all
}

// stillThere is the error for killed processes that have not ended in time.
func stillThere(dir string, pids []int, err error) error {
	held := waiting(pids)
	if len(held) == 0 {
		return fmt.Errorf("kill the processes in %s: some are still there, pids %v: %w", dir, pids, err)
	}
	return fmt.Errorf("kill the processes in %s: some are still there, pids %v: %s: %w; they end when the kernel has what they wait for, a disk or a file server: "+
		"see to that, and repeat the command", dir, pids, strings.Join(held, ", "), err)
}
