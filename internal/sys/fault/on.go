//go:build berthfault

package fault

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

var passed atomic.Int64

// Point counts the fault points that the process passes. At the point with the number in BERTH_FAULT it kills the process
// with SIGKILL. At the one in BERTH_FAULT_STOP it stops the process with SIGSTOP, so that a test can change the host
// meanwhile. Both may be the name of a point instead, which is then each point of that name. It appends each point to the file BERTH_FAULT_LOG, if set.
func Point(name string) {
	n := passed.Add(1)
	if log := os.Getenv("BERTH_FAULT_LOG"); log != "" {
		if f, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); err == nil {
			fmt.Fprintf(f, "%d %s\n", n, name)
			f.Close()
		}
	}
	is := func(variable string) bool {
		at := os.Getenv(variable)
		return at == name || at == strconv.FormatInt(n, 10)
	}
	if is("BERTH_FAULT") {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	if is("BERTH_FAULT_STOP") {
		_, _, _ = syscall.Syscall(syscall.SYS_TGKILL, uintptr(os.Getpid()), uintptr(syscall.Gettid()), uintptr(syscall.SIGSTOP))
	}
}

// KeeperEnv replaces the starter's fault variables by the keeper's: BERTH_FAULT_KEEPER becomes BERTH_FAULT,
// BERTH_FAULT_KEEPER_LOG becomes BERTH_FAULT_LOG.
func KeeperEnv(env []string) []string {
	var out []string
	for _, e := range env {
		switch k, v, _ := strings.Cut(e, "="); k {
		case "BERTH_FAULT", "BERTH_FAULT_STOP", "BERTH_FAULT_LOG":
		case "BERTH_FAULT_KEEPER":
			out = append(out, "BERTH_FAULT="+v)
		case "BERTH_FAULT_KEEPER_LOG":
			out = append(out, "BERTH_FAULT_LOG="+v)
		default:
			out = append(out, e)
		}
	}
	return out
}

// Boot returns the id of this boot, or the value of BERTH_FAULT_BOOT in its place: for a test that cuts the power of a file
// system.
func Boot(id string) string {
	if other := os.Getenv("BERTH_FAULT_BOOT"); other != "" {
		return other
	}
	return id
}
