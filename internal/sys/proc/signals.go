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
	// either once it was woken, until it gets a CPU: so a process that is running is looked at again.
	for until := time.Now().Add(settleTime); ; time.Sleep(time.Millisecond) {
		call, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/syscall")
		if err == nil && bytes.HasPrefix(call, []byte(strconv.Itoa(unix.SYS_RT_SIGTIMEDWAIT)+" ")) {
			return true
		}
		if shown(pid, sig) {
			return true
		}
		if err != nil || !bytes.HasPrefix(call, []byte("running")) || time.Now().After(until) {
			return false
		}
	}
}

// shown reports whether /proc shows that the process has a handler for the signal, or blocks it.
func shown(pid int, sig unix.Signal) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false
	}
	for line := range bytes.Lines(b) {
		name, mask, _ := bytes.Cut(line, []byte(":"))
		if string(name) != "SigCgt" && string(name) != "SigBlk" {
			continue
		}
		m, err := strconv.ParseUint(string(bytes.TrimSpace(mask)), 16, 64)
		if err == nil && m&(1<<(uint(sig)-1)) != 0 {
			return true
		}
	}
	return false
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
