package vnode

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// checkUser checks the form of a user. Whether the image has it is known when the image is read.
func checkUser(r *report, n *Node) {
	if n.User == "" {
		return
	}
	user, group, hasGroup := strings.Cut(n.User, ":")
	if !isUser(user) || hasGroup && !isUser(group) {
		r.bad("user", "%q is not a user: USER or USER:GROUP, names or numbers", n.User)
	}
}

func isUser(s string) bool {
	return s != "" && len(s) <= 256 && !strings.HasPrefix(s, "-") && !strings.ContainsFunc(s, func(c rune) bool {
		return c == ':' || c == ',' || c == '/' || unicode.IsSpace(c)
	})
}

// CheckVariable returns what is wrong with the name and value of a variable of the environment; "" if nothing is. It does
// not repeat the value, which may be a secret.
func CheckVariable(name, value string) string {
	switch {
	case name == "":
		return "a variable without a name"
	case strings.ContainsFunc(name, func(c rune) bool { return c == '=' || unicode.IsSpace(c) || unicode.IsControl(c) }) || !utf8.ValidString(name):
		return "not the name of a variable: it holds '=', a space or a control character"
	case strings.ContainsRune(value, 0) || !utf8.ValidString(value):
		return "not a value of a variable: it must be UTF-8 without NUL"
	}
	return ""
}

func checkEnv(r *report, n *Node) {
	for _, name := range slices.Sorted(maps.Keys(n.Env)) {
		if wrong := CheckVariable(name, n.Env[name]); wrong != "" {
			r.bad("env."+name, "%s", wrong)
		}
	}
}

func checkEnvFrom(r *report, n *Node) {
	if n.EnvFrom != "" {
		checkPath(r, "env_from", n.EnvFrom)
	}
}

func checkPrivileges(r *report, n *Node) {
	if n.NewPrivileges() && !n.UserNS() {
		r.badIf([]string{"user_namespace"}, "no_new_privileges", "false is not possible with user_namespace: false: set-user-id programs would give the host's own rights")
	}
}

func checkWorkdir(r *report, n *Node) {
	if n.Workdir != "" {
		checkPath(r, "workdir", n.Workdir)
	}
}

// longestLabel is the most bytes of a label's name or value.
const longestLabel = 256

func checkLabels(r *report, n *Node) {
	for _, name := range slices.Sorted(maps.Keys(n.Labels)) {
		switch value := n.Labels[name]; {
		case name == "" || len(name) > longestLabel || strings.ContainsFunc(name, func(c rune) bool { return c == '=' || unicode.IsSpace(c) || unicode.IsControl(c) }):
			r.bad("labels."+name, "%q is not the name of a label: 1 to %d bytes without '=' and spaces", name, longestLabel)
		case len(value) > longestLabel:
			r.bad("labels."+name, "longer than %d bytes", longestLabel)
		}
	}
}

func checkStop(r *report, n *Node) {
	if n.Stop.Signal == "" {
		return
	}
	if _, err := ParseSignal(n.Stop.Signal); err != nil {
		r.bad("stop.signal", "%s", err)
	}
}

func checkHealth(r *report, n *Node) {
	h := &n.Health
	if len(h.Command) == 0 {
		if h.Every != nil || h.Timeout != nil || h.Retries != 0 || h.StartPeriod != nil || h.Restart {
			r.bad("health.command", "missing: what checks the node, for example [pg_isready]")
		}
		return
	}
	checkWords(r, "health.command", h.Command)
	every, timeout, _ := h.Times()
	if every < time.Second {
		r.bad("health.every", "%s is too short: at least 1s", Duration(every))
	}
	if timeout <= 0 {
		r.bad("health.timeout", "0s is no time: leave it out for 30s")
	}
	if h.Restart && (n.Restart == "" || n.Restart == Never) {
		r.badIf([]string{"restart"}, "health.restart", "needs restart: on-failure or always, which then starts the node again")
	}
}

func checkTmpfs(r *report, n *Node) {
	for i, t := range n.Tmpfs {
		at := fmt.Sprintf("tmpfs[%d]", i)
		checkTarget(r, at+".target", t.Target)
		if t.Size > 0 {
			checkLeast(r, at+".size", t.Size)
		}
		checkMode(r, at+".mode", t.Mode)
	}
}

// checkMode checks the mode of a folder, if it is given.
func checkMode(r *report, field, mode string) {
	if mode != "" && (strings.Trim(mode, "01234567") != "" || len(mode) < 3 || len(mode) > 4) {
		r.bad(field, "%q is not a mode: three or four octal digits, for example 1777 or 0750", mode)
	}
}

func checkSysctls(r *report, n *Node) {
	for _, name := range slices.Sorted(maps.Keys(n.Sysctls)) {
		if !slices.Contains(Sysctls(), name) {
			r.bad("sysctls."+name, "not allowed: it is not the node's own, or could harm others; allowed are %s", or(Sysctls()))
		} else if strings.TrimSpace(n.Sysctls[name]) == "" {
			r.bad("sysctls."+name, "empty: a parameter needs a value")
		}
	}
}
