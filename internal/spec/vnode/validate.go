package vnode

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Validate returns all problems of a node that the spec alone shows, in no particular order; none if it is valid. The
// planner checks what depends on the host (does the disk exist, are two paths one disk).
func Validate(n *Node) []Problem {
	n = withDefaults(n)
	r := &report{}
	for _, c := range checks() {
		r.check = c.name
		c.run(r, n)
	}
	return r.own()
}

type check struct {
	name string
	run  func(*report, *Node)
}

// checks returns all checks. Each checks one thing and ignores all others, so that one mistake gives one problem.
func checks() []check {
	return []check{
		{"text", checkText},
		{"values", checkValues},
		{"name", checkName},
		{"hostname", checkHostname},
		{"image", checkImage},
		{"command", checkCommand},
		{"user", checkUser},
		{"users", checkUsers},
		{"env", checkEnv},
		{"env-from", checkEnvFrom},
		{"privileges", checkPrivileges},
		{"workdir", checkWorkdir},
		{"labels", checkLabels},
		{"stop", checkStop},
		{"health", checkHealth},
		{"tmpfs", checkTmpfs},
		{"sysctls", checkSysctls},
		{"cpu", checkCPU},
		{"memory", checkMemory},
		{"hugepages", checkHugePages},
		{"rlimits", checkRLimits},
		{"io", checkIO},
		{"io-unique", checkIOUnique},
		{"io-engine", checkEngines},
		{"io-filesystem", checkFilesystems},
		{"network-mode", checkNetworkMode},
		{"network-names", checkNetworkNames},
		{"network-mac", checkMACs},
		{"network-addresses", checkAddresses},
		{"network-dhcp", checkDHCP},
		{"network-gateway", checkGateways},
		{"network-routes", checkRoutes},
		{"network-mtu", checkMTU},
		{"network-nat", checkNAT},
		{"network-ports", checkPorts},
		{"network-vlan", checkVLAN},
		{"devices", checkDevices},
		{"mounts", checkMounts},
		{"scratch", checkScratch},
		{"targets-unique", checkTargetsUnique},
		{"delta", checkDelta},
		{"machine", checkMachine},
	}
}

func checkName(r *report, n *Node) {
	switch {
	case n.Name == "":
		r.bad("name", "missing: a node needs a name")
	case !isName(n.Name, longestName):
		r.bad("name", "%q is not a name: "+nameRule, n.Name, longestName)
	}
}

// checkHostname checks a host name against RFC 1123 and the 64 bytes of Linux's UTS namespace.
func checkHostname(r *report, n *Node) {
	if n.Hostname != "" && !isHostname(n.Hostname) {
		r.bad("hostname", "%q is not a host name: letters, digits, '-' and dots between labels of at most 63, at most %d in all", n.Hostname, longestHostname)
	}
}

func checkImage(r *report, n *Node) {
	img := n.Image
	if img.Kind == "" {
		r.bad("image", "missing: host, oci:NAME, oci-layout:DIR, dir:PATH or file:PATH")
		return
	}
	if _, err := ParseImage(img.String()); err != nil {
		r.bad("image", "%s", err)
		return
	}
	if img.Kind == OCIImage && strings.ContainsFunc(img.Ref, unicode.IsSpace) {
		r.bad("image", "%q is not an image reference: it holds a space", img.Ref)
	}
	suffixes := []string{".squashfs", ".erofs", ".tar"}
	if img.Kind == FileImage && !slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(img.Ref, s) }) {
		r.bad("image", "%q is no known kind of file: its name must end in %s", img.Ref, or(suffixes))
	}
}

func checkCommand(r *report, n *Node) {
	switch {
	case len(n.Command) == 0 && n.Image.Kind == HostImage:
		r.badIf([]string{"image"}, "command", "missing: image host has no command of its own, for example [/bin/sleep, infinity]")
	}
	checkWords(r, "command", n.Command)
}

// checkWords checks the words of a command, if there is one.
func checkWords(r *report, field string, words []string) {
	for i, word := range words {
		at := fmt.Sprintf("%s[%d]", field, i)
		if i == 0 && word == "" {
			r.bad(at, "empty: the first word is the program")
		} else if strings.ContainsRune(word, 0) || !utf8.ValidString(word) {
			r.bad(at, "%q cannot be a word of a command: it must be UTF-8 without NUL", word)
		}
	}
}

// leastXFS is the smallest XFS that mkfs.xfs makes.
const leastXFS = 300 << 20

func checkScratch(r *report, n *Node) {
	for i, s := range n.Scratch {
		at := fmt.Sprintf("scratch[%d]", i)
		checkTarget(r, at+".target", s.Target)
		switch {
		case s.Size == 0:
			r.bad(at+".size", "missing: for example 20GiB")
		case s.Size > 0 && s.FS == XFS && s.Size < leastXFS && s.Size >= leastBytes:
			r.badIf([]string{at + ".fs"}, at+".size", "%s is too small for fs %s: at least 300MiB", s.Size, s.FS)
		case s.Size > 0:
			checkLeast(r, at+".size", s.Size)
		}
		if s.Pool != "" && !isName(s.Pool, longestName) {
			r.bad(at+".pool", "%q is not a name: "+nameRule, s.Pool, longestName)
		}
		checkMode(r, at+".mode", s.Mode)
	}
}

func checkDelta(r *report, n *Node) {
	if n.Delta.Size > 0 {
		checkLeast(r, "delta.size", n.Delta.Size)
	}
}
