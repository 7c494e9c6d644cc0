package proc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// settleTime is how long a process that is running is looked at until it waits for something.
const settleTime = time.Second

// Handles reports whether the process has a handler for the signal, or blocks it, as those do that fetch their signals
// (signalfd: systemd; sigwait: busybox init, tini). The kernel does not deliver a signal to an init that does neither
// (pid_namespaces(7)).
func Handles(pid int, sig unix.Signal) bool {
	// In sigwait a process seems to block nothing: the kernel keeps the real mask where /proc does not show it. That it waits is not shown
	// either once it was woken, until it gets a CPU. And it may begin to wait between one look and the next: so a process that is running, or
	// has run meanwhile, is looked at again.
	for until := time.Now().Add(settleTime); ; time.Sleep(time.Millisecond) {
		masks, err := lookAtSignals(pid)
		if err != nil || masks.shown&(1<<(uint(sig)-1)) != 0 {
			return err == nil
		}
		call, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/syscall")
		if err == nil && bytes.HasPrefix(call, []byte(strconv.Itoa(unix.SYS_RT_SIGTIMEDWAIT)+" ")) {
			return true
		}
		rests := !bytes.HasPrefix(call, []byte("running"))
		if rests && err == nil {
			var again signals
			again, err = lookAtSignals(pid)
			rests = again.switches == masks.switches
		}
		if err != nil || rests || time.Now().After(until) {
			return false
		}
	}
}

// signals is what the kernel shows of a thread's signals.
type signals struct {
	shown    uint64 // bit N-1: signal N is blocked, or has a handler
	switches uint64 // how often the thread has left a CPU
}

func lookAtSignals(pid int) (s signals, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return s, fmt.Errorf("look at the signals of process %d: %w", pid, err)
	}
	for line := range bytes.Lines(b) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		text := string(bytes.TrimSpace(value))
		switch string(name) {
		case "SigCgt", "SigBlk":
			m, _ := strconv.ParseUint(text, 16, 64) // the kernel's own
			s.shown |= m
		case "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches":
			n, _ := strconv.ParseUint(text, 10, 64)
			s.switches += n
		}
	}
	return s, nil
}

// The real-time signals that programs see (signal(7)): the C library keeps two below for itself.
const (
	rtMin = 34
	rtMax = 64
)

// ParseSignal reads a signal's name, with or without SIG, in any case, or its number: "TERM", "SIGHUP", "9", "RTMIN+3".
func ParseSignal(text string) (unix.Signal, error) {
	if n, err := strconv.Atoi(text); err == nil {
		if n < 1 || n > rtMax {
			return 0, fmt.Errorf("%q is not a signal: a number is from 1 to %d", text, rtMax)
		}
		return unix.Signal(n), nil
	}
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	if s := unix.SignalNum("SIG" + name); s != 0 {
		return s, nil
	}
	for base, from := range map[string]int{"RTMIN": rtMin, "RTMAX": rtMax} {
		rest, found := strings.CutPrefix(name, base)
		n, err := strconv.Atoi(rest)
		if rest == "" {
			n, err = 0, nil
		}
		if found && err == nil && from+n >= rtMin && from+n <= rtMax {
			return unix.Signal(from + n), nil
		}
	}
	return 0, fmt.Errorf("%q is not a signal, for example TERM, SIGHUP, 9 or RTMIN+3", text)
}

// SignalText names a signal: "SIGTERM", "SIGRTMIN+3".
func SignalText(s unix.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	if s >= rtMin && s <= rtMax {
		return "SIGRTMIN+" + strconv.Itoa(int(s)-rtMin)
	}
	return "signal " + strconv.Itoa(int(s))
}
