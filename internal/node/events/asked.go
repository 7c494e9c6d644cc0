package events

// Asked says in words what the first process of a node asked the kernel for, if the signal that ended it tells so; "" if it does not. reboot(2) in
// a PID namespace ends the namespace's first process by SIGINT (power off, halt) or SIGHUP (boot again): pid_namespaces(7). Nothing else ends it
// by these: the kernel drops signals for a first process that it does not handle (sig_task_ignored in kernel/signal.c).
func Asked(signal string) string {
	switch signal {
	case PowerOff:
		return "shut down"
	case BootAgain:
		return "wants to boot again"
	}
	return ""
}

// The signals by which the kernel tells of reboot(2).
const (
	PowerOff  = "SIGINT"
	BootAgain = "SIGHUP"
)
