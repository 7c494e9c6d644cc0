package vnode

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Problem is one mistake in a spec.
type Problem struct {
	Field string // the field in the spec's keys: "network[0].mac"
	Msg   string // the mistake, and what is allowed
	Check string // name of the check that found it

	// RestsOn lists other fields that the problem depends on. If one of them has a problem itself, this problem is
	// dropped.
	RestsOn []string
}

// String returns one line: the field, then the message.
func (p Problem) String() string { return p.Field + ": " + p.Msg }

// Within reports whether field is outer or inside it: network[0].address[1] is in network[0].address and in network[0].
func Within(field, outer string) bool {
	rest, ok := strings.CutPrefix(field, outer)
	return ok && (rest == "" || outer == "" || rest[0] == '.' || rest[0] == '[')
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

func isHostname(s string) bool {
	if len(s) > longestHostname {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if !isName(strings.ToLower(label), 63) {
			return false
		}
	}
	return true
}

const longestHostname = 64

// or joins the allowed values for a message: "a, b or c".
func or(list []string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	return strings.Join(list[:len(list)-1], ", ") + " or " + list[len(list)-1]
}

// checkPath requires an absolute path in its shortest form.
func checkPath(r *report, field, p string) bool {
	switch {
	case p == "":
		r.bad(field, "missing: an absolute path")
	case !strings.HasPrefix(p, "/"):
		r.bad(field, "%q is not an absolute path", p)
	case path.Clean(p) != p:
		r.bad(field, "%q is not a clean path: write %q", p, path.Clean(p))
	default:
		return true
	}
	return false
}

// isBelow reports whether p is dir or below it.
func isBelow(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// firstUse maps a value of each kind to the field that used it first.
type firstUse map[[2]string]string

// check reports a value that was used before. It ignores empty values.
func (f firstUse) check(r *report, kind, field, value string) {
	if value == "" {
		return
	}
	if at, used := f[[2]string{kind, value}]; used {
		r.bad(field, "%q is already at %s", value, at)
		return
	}
	f[[2]string{kind, value}] = field
}

// checkTarget requires a path at which something can be mounted in a node: not its root, and nothing that Berth mounts
// itself.
func checkTarget(r *report, field, p string) {
	if !checkPath(r, field, p) {
		return
	}
	if p == "/" {
		r.bad(field, "/ is the node's root: it comes from image")
	}
	for _, own := range []string{"/proc", "/sys", "/dev"} {
		if isBelow(p, own) {
			r.bad(field, "%q is not allowed: %s in a node is Berth's own", p, own)
		}
	}
}
