package vnode

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Problem is one mistake in a spec.
type Problem struct {
	Field string // the field in the spec's keys: "network[0].mac"
	Msg   string // what is wrong and what is allowed
	Check string // name of the check that found it

	// RestsOn lists other fields that the problem depends on. If one of them has a problem itself, this problem is
	// dropped.
	RestsOn []string
}

// String returns one line: the field, then the message.
func (p Problem) String() string { return p.Field + ": " + p.Msg }

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

// own returns the problems without those that follow from others, so that one mistake gives one problem: at most one
// per field, and none whose RestsOn has a problem itself.
func (r *report) own() []Problem {
	var own []Problem
	told := map[string]bool{}
	for _, p := range r.problems {
		wrong := func(field string) bool {
			return slices.ContainsFunc(r.problems, func(o Problem) bool { return o.Field != p.Field && Within(o.Field, field) })
		}
		if told[p.Field] || slices.ContainsFunc(p.RestsOn, wrong) {
			continue
		}
		told[p.Field] = true
		own = append(own, p)
	}
	return own
}

// Within reports whether field is outer or inside it: network[0].address[1] is in network[0].address and in network[0].
func Within(field, outer string) bool {
	rest, ok := strings.CutPrefix(field, outer)
	return ok && (rest == "" || outer == "" || rest[0] == '.' || rest[0] == '[')
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
		{"cpu", checkCPU},
		{"memory", checkMemory},
		{"hugepages", checkHugePages},
		{"rlimits", checkRLimits},
		{"io", checkIO},
		{"io-unique", checkIOUnique},
		{"io-engine", checkEngines},
		{"network-mode", checkNetworkMode},
		{"network-names", checkNetworkNames},
		{"network-mac", checkMACs},
		{"network-addresses", checkAddresses},
		{"network-dhcp", checkDHCP},
		{"network-gateway", checkGateways},
		{"network-routes", checkRoutes},
		{"network-mtu", checkMTU},
		{"devices", checkDevices},
		{"mounts", checkMounts},
		{"scratch", checkScratch},
		{"targets-unique", checkTargetsUnique},
		{"delta", checkDelta},
	}
}

// report collects problems.
type report struct {
	check     string
	problems  []Problem
	unreached map[string]bool // interfaces and address families with an unreachable neighbour reported
}

func (r *report) bad(field, format string, a ...any) {
	r.problems = append(r.problems, Problem{Field: field, Msg: fmt.Sprintf(format, a...), Check: r.check})
}

// badIf is bad for a problem that depends on other fields.
func (r *report) badIf(restsOn []string, field, format string, a ...any) {
	r.bad(field, format, a...)
	r.problems[len(r.problems)-1].RestsOn = restsOn
}

const nameRule = "lower-case letters, digits and '-', a letter or digit first and last, at most %d"

// isName reports whether s is a name by Berth's rules: of a node, an io entry, an interface in the node.
func isName(s string, longest int) bool {
	if s == "" || len(s) > longest || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}

const longestName = 48

// CheckName returns an error if a name, for example of a node or a MAC pool, breaks Berth's rules.
func CheckName(name string) error {
	if !isName(name, longestName) {
		return fmt.Errorf("%q is not a name: "+nameRule, name, longestName)
	}
	return nil
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
	const longest = 64
	bad := len(n.Hostname) > longest
	for label := range strings.SplitSeq(n.Hostname, ".") {
		bad = bad || !isName(strings.ToLower(label), 63)
	}
	if bad && n.Hostname != "" {
		r.bad("hostname", "%q is not a host name: letters, digits, '-' and dots between labels of at most 63, at most %d in all", n.Hostname, longest)
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
	case len(n.Command) > 0 && n.Command[0] == "":
		r.bad("command[0]", "empty: the first word is the program")
	}
	for i, arg := range n.Command {
		if strings.ContainsRune(arg, 0) || !utf8.ValidString(arg) {
			r.bad(fmt.Sprintf("command[%d]", i), "%q cannot be a word of a command: it must be UTF-8 without NUL", arg)
		}
	}
}

func checkScratch(r *report, n *Node) {
	for i, s := range n.Scratch {
		at := fmt.Sprintf("scratch[%d]", i)
		checkTarget(r, at+".target", s.Target)
		if s.Size == 0 {
			r.bad(at+".size", "missing: for example 20GiB")
		} else if s.Size > 0 {
			checkLeast(r, at+".size", s.Size)
		}
		if strings.Contains(s.Pool, "/") {
			checkPath(r, at+".pool", s.Pool)
		}
	}
}

func checkDelta(r *report, n *Node) {
	if n.Delta.Size > 0 {
		checkLeast(r, "delta.size", n.Delta.Size)
	}
}

// leastBytes is the smallest limit or volume. Anything smaller is a forgotten unit, and no process fits in it.
const leastBytes = 1 << 20

func checkLeast(r *report, field string, b Bytes) {
	if b < leastBytes {
		r.bad(field, "%d bytes cannot work: at least 1MiB (a bare number is bytes: is the unit missing?)", int64(b))
	}
}

// or joins the allowed values for a message: "a, b or c".
func or(list []string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	return strings.Join(list[:len(list)-1], ", ") + " or " + list[len(list)-1]
}
