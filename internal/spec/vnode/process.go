package vnode

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Env maps variables of the environment to their values.
type Env map[string]string

// List returns the variables as NAME=VALUE, in the order of their names.
func (e Env) List() []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(e)) {
		all = append(all, name+"="+e[name])
	}
	return all
}

// Tmpfs is a file system in the node's memory.
type Tmpfs struct {
	Target string `json:"target" doc:"path inside"`
	Size   Bytes  `json:"size,omitempty" doc:"most bytes of it; default: half of memory.max, else half of the host's memory"`
	Mode   string `json:"mode,omitempty" doc:"mode of its folder in octal digits; default 1777"`
}

// Stop says how a node is stopped.
type Stop struct {
	Signal string    `json:"signal,omitempty" doc:"what asks process 1 to end, for example QUIT or SIGRTMIN+3; default: the image's own, else what its init understands, else TERM"`
	Grace  *Duration `json:"grace,omitempty" doc:"time to wait after that before everything is killed; default 10s"`
}

// DefaultGrace is the time that a node without stop.grace gets to end by itself.
const DefaultGrace = 10 * time.Second

// Wait returns the time to wait before everything is killed.
func (s Stop) Wait() time.Duration {
	if s.Grace == nil {
		return DefaultGrace
	}
	return time.Duration(*s.Grace)
}

// Health is a check of a running node: a command that ends with 0 if all is well.
type Health struct {
	Command     []string  `json:"command,omitempty" doc:"the check: runs inside as exec does, and ends with 0 if all is well"`
	Every       *Duration `json:"every,omitempty" doc:"time from the end of a check to the next; default 30s, at least 1s"`
	Timeout     *Duration `json:"timeout,omitempty" doc:"time that a check may take: then it is killed and counts as failed; default 30s"`
	Retries     int       `json:"retries,omitempty" doc:"so many failures in a row make the node unhealthy; default 3" range:"1..1000"`
	StartPeriod *Duration `json:"start_period,omitempty" doc:"time after the start in which failures do not count, until the first success; default 0s"`
	Restart     bool      `json:"restart,omitempty" doc:"end the node when it is unhealthy, so that its restart policy starts it again"`
}

// Times returns the times of a check with their defaults.
func (h *Health) Times() (every, timeout, startPeriod time.Duration) {
	or := func(d *Duration, otherwise time.Duration) time.Duration {
		if d == nil {
			return otherwise
		}
		return time.Duration(*d)
	}
	return or(h.Every, 30*time.Second), or(h.Timeout, 30*time.Second), or(h.StartPeriod, 0)
}

// Most returns how many failures in a row make the node unhealthy.
func (h *Health) Most() int {
	if h.Retries == 0 {
		return 3
	}
	return h.Retries
}

// Duration is a length of time: "10s", "1m30s".
type Duration time.Duration

// longestDuration is the longest time in a spec. A longer one is a mistake.
const longestDuration = 7 * 24 * time.Hour

// ParseDuration reads a length of time.
func ParseDuration(s string) (Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > longestDuration || strings.Trim(s, "0123456789.hms") != "" || strings.HasSuffix(s, "0") {
		return 0, fmt.Errorf("%q is not a length of time: a number with ms, s, m or h, at most %s, for example 10s or 1m30s", s, Duration(longestDuration))
	}
	return Duration(d), nil
}

// String writes the value exactly, without parts that are 0.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText returns the text of String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the text with ParseDuration.
func (d *Duration) UnmarshalText(t []byte) (err error) { *d, err = ParseDuration(string(t)); return }

// The real-time signals as C libraries count them: the kernel's first two are the libraries' own.
const (
	rtMin = 34
	rtMax = 64
)

// ParseSignal reads a signal's name or number: "TERM", "SIGTERM", "15", "SIGRTMIN+3".
func ParseSignal(text string) (syscall.Signal, error) {
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	number, err := strconv.Atoi(name)
	if after, ok := strings.CutPrefix(name, "RTMIN"); ok {
		number = rtMin + offset(after, "+")
	} else if before, ok := strings.CutPrefix(name, "RTMAX"); ok {
		number = rtMax - offset(before, "-")
	} else if err != nil {
		number = int(signals()[name])
	}
	if number < 1 || number > rtMax || number > int(syscall.SIGSYS) && number < rtMin {
		return 0, fmt.Errorf("%q is not a signal: a name or a number, for example TERM, SIGQUIT, RTMIN+3 or 15", text)
	}
	return syscall.Signal(number), nil
}

// offset reads the number behind a sign; nothing is 0. What is no such number is out of any range.
func offset(text, sign string) int {
	digits, signed := strings.CutPrefix(text, sign)
	n, err := strconv.ParseUint(digits, 10, 8)
	switch {
	case text == "":
		return 0
	case !signed || err != nil:
		return 1000
	}
	return int(n)
}

func signals() map[string]syscall.Signal {
	return map[string]syscall.Signal{
		"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "ILL": syscall.SIGILL, "TRAP": syscall.SIGTRAP, "ABRT": syscall.SIGABRT,
		"BUS": syscall.SIGBUS, "FPE": syscall.SIGFPE, "KILL": syscall.SIGKILL, "USR1": syscall.SIGUSR1, "SEGV": syscall.SIGSEGV, "USR2": syscall.SIGUSR2,
		"PIPE": syscall.SIGPIPE, "ALRM": syscall.SIGALRM, "TERM": syscall.SIGTERM, "CHLD": syscall.SIGCHLD, "CONT": syscall.SIGCONT, "STOP": syscall.SIGSTOP,
		"TSTP": syscall.SIGTSTP, "TTIN": syscall.SIGTTIN, "TTOU": syscall.SIGTTOU, "URG": syscall.SIGURG, "XCPU": syscall.SIGXCPU, "XFSZ": syscall.SIGXFSZ,
		"VTALRM": syscall.SIGVTALRM, "PROF": syscall.SIGPROF, "WINCH": syscall.SIGWINCH, "IO": syscall.SIGIO, "PWR": syscall.SIGPWR, "SYS": syscall.SIGSYS,
	}
}

// Sysctls returns the kernel parameters that a spec may set: those of a node's own network and IPC namespaces that change
// nothing for others.
//
// Left out are those that the kernel shares between namespaces (net.ipv4.tcp_mem, net.core.rmem_max), those by which a node
// would forward packets or believe redirects and routers (forwarding, accept_ra, rp_filter), and net.ipv4.ping_group_range,
// which Berth sets.
func Sysctls() []string {
	return []string{
		"fs.mqueue.msg_default", "fs.mqueue.msg_max", "fs.mqueue.msgsize_default", "fs.mqueue.msgsize_max", "fs.mqueue.queues_max",
		"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem",
		"kernel.shm_rmid_forced", "kernel.shmall", "kernel.shmmax", "kernel.shmmni",
		"net.core.somaxconn", "net.unix.max_dgram_qlen",
		"net.ipv4.ip_default_ttl", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports", "net.ipv4.ip_no_pmtu_disc",
		"net.ipv4.ip_nonlocal_bind", "net.ipv4.ip_unprivileged_port_start",
		"net.ipv4.tcp_abort_on_overflow", "net.ipv4.tcp_ecn", "net.ipv4.tcp_fastopen", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
		"net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_max_syn_backlog", "net.ipv4.tcp_max_tw_buckets",
		"net.ipv4.tcp_moderate_rcvbuf", "net.ipv4.tcp_mtu_probing", "net.ipv4.tcp_no_metrics_save", "net.ipv4.tcp_notsent_lowat",
		"net.ipv4.tcp_orphan_retries", "net.ipv4.tcp_retries1", "net.ipv4.tcp_retries2", "net.ipv4.tcp_rfc1337", "net.ipv4.tcp_rmem",
		"net.ipv4.tcp_sack", "net.ipv4.tcp_slow_start_after_idle", "net.ipv4.tcp_syn_retries", "net.ipv4.tcp_synack_retries",
		"net.ipv4.tcp_syncookies", "net.ipv4.tcp_timestamps", "net.ipv4.tcp_tw_reuse", "net.ipv4.tcp_window_scaling", "net.ipv4.tcp_wmem",
		"net.ipv4.udp_rmem_min", "net.ipv4.udp_wmem_min",
		"net.ipv6.bindv6only", "net.ipv6.conf.all.disable_ipv6", "net.ipv6.conf.default.disable_ipv6", "net.ipv6.ip_nonlocal_bind",
	}
}
