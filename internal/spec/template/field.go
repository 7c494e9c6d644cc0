package template

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth/internal/spec/roles"
	"berth/internal/spec/vnode"
)

// The fields that a parameter may set, besides limits. All others come from the template alone.
const (
	imageField   = "image"
	commandField = "command"
	argsField    = "args" // words behind the template's command
	envField     = "env."
	labelField   = "labels."
)

// limitType returns the type of the limit with a key, as berth set names it: of those that restrict a node. Keys that protect
// a node (memory.low), place it (cpu.set) or say what happens to it (restart) are none of them.
func limitType(key string) (Type, bool) {
	parts := strings.Split(key, ".")
	last := parts[len(parts)-1]
	switch {
	case key == "cpu.max":
		return Number, true
	case key == "memory.max", key == "memory.high", key == "memory.swap", parts[0] == "hugepages" && len(parts) == 2:
		return Size, true
	case key == "pids", key == "cpu.weight", parts[0] == "rlimits" && len(parts) == 2:
		return Integer, true
	case parts[0] == "net" && len(parts) == 3 && (last == "tx" || last == "rx"):
		return BitRate, true
	case parts[0] == "io" && len(parts) == 3 && last == "weight":
		return Integer, true
	case parts[0] == "io" && len(parts) == 4 && (parts[2] == "read" || parts[2] == "write"):
		switch last {
		case "rate":
			return Rate, true
		case "iops":
			return Integer, true
		}
	}
	return "", false
}

// bound returns the template's own value of a limit: "" if there is none, so that any value is lower.
func bound(n *vnode.Node, key string) string {
	for _, s := range vnode.Limits(n) {
		if s.Key == key {
			return s.Value
		}
	}
	switch {
	case key == "pids":
		return strconv.Itoa(vnode.DefaultPIDs)
	case strings.HasSuffix(key, ".weight"):
		return "100" // what the kernel gives
	}
	return ""
}

// wordIndex reads command[N].
func wordIndex(field string) (int, bool) {
	text, ok := strings.CutPrefix(field, commandField+"[")
	text, closed := strings.CutSuffix(text, "]")
	i, err := strconv.Atoi(text)
	return i, ok && closed && err == nil && i >= 0 && strconv.Itoa(i) == text
}

// has reports whether the node has something where the parameter sets something: then it may be left out.
func (p *Parameter) has(n *vnode.Node) bool {
	if name, ok := strings.CutPrefix(p.Sets, envField); ok {
		_, there := n.Env[name]
		return there
	}
	if name, ok := strings.CutPrefix(p.Sets, labelField); ok {
		_, there := n.Labels[name]
		return there
	}
	switch p.Sets {
	case imageField:
		return n.Image.Kind != ""
	case commandField:
		return len(n.Command) > 0
	case argsField:
		return true
	}
	if _, ok := wordIndex(p.Sets); ok {
		return true
	}
	return bound(n, p.Sets) != ""
}

// apply puts a value into the node n. own is the node as the template has it, which bounds limits.
func (p *Parameter) apply(n, own *vnode.Node, value any) error {
	if p.Type == List {
		words, err := p.list(value)
		if err != nil {
			return err
		}
		if p.Sets == commandField {
			n.Command = nil
		}
		n.Command = slices.Concat(n.Command, words)
		return nil
	}
	text, err := p.one(value)
	if err != nil {
		return err
	}
	if name, ok := strings.CutPrefix(p.Sets, envField); ok {
		if n.Env == nil {
			n.Env = vnode.Env{}
		}
		n.Env[name] = text
		return nil
	}
	if name, ok := strings.CutPrefix(p.Sets, labelField); ok {
		if n.Labels == nil {
			n.Labels = vnode.Labels{}
		}
		n.Labels[name] = text
		return nil
	}
	if i, ok := wordIndex(p.Sets); ok {
		n.Command[i] = text
		return nil
	}
	if p.Sets == imageField {
		return n.Image.UnmarshalText([]byte(text))
	}
	return p.lower(n, own, text)
}

// lower sets a limit that is not above the template's own.
func (p *Parameter) lower(n, own *vnode.Node, text string) error {
	if most := bound(own, p.Sets); most != "" {
		v, err := p.Type.amount(text)
		if err != nil {
			return err
		}
		high, err := p.Type.amount(most)
		if err != nil {
			return fmt.Errorf("the template's own %s %s: %w", p.Sets, most, err)
		}
		if v.Cmp(high) > 0 {
			return fmt.Errorf("%s is above the template's own %s: limits are only lowered", text, most)
		}
	}
	return vnode.Change(n, p.Sets, text)
}

// check returns the mistakes in a template.
func check(t *Template) []vnode.Problem {
	var all []vnode.Problem
	bad := func(field, format string, a ...any) {
		all = append(all, vnode.Problem{Field: field, Msg: fmt.Sprintf(format, a...)})
	}
	if t.Node.Name != "" {
		bad("node.name", "not allowed: whoever makes a node names it")
	}
	for name := range t.Node.Labels {
		if strings.HasPrefix(name, roles.OwnLabels) {
			bad("node.labels."+name, "not allowed: labels that begin with %s are Berth's own", roles.OwnLabels)
		}
	}
	for _, p := range vnode.Validate(sample(t)) {
		if p.Field != "name" {
			p.Field = "node." + p.Field
			all = append(all, p)
		}
	}
	if t.Highest < 0 || t.Highest > 0 && !t.Numbered {
		bad("highest", "%d is not allowed: a number above 0, beside numbered: true", t.Highest)
	}
	if t.Most < 0 {
		bad("most", "%d is not allowed: a number above 0", t.Most)
	}
	for i, name := range t.Operators {
		at := fmt.Sprintf("operators[%d]", i)
		if err := roles.CheckName(name); err != nil {
			bad(at, "%v", err)
		} else if slices.Index(t.Operators, name) < i {
			bad(at, "%s is there already", name)
		}
	}
	setBy := map[string]string{}
	for _, name := range sortedKeys(t.Parameters) {
		p := t.Parameters[name]
		at := "parameters." + name
		if !names().MatchString(strings.ReplaceAll(name, "_", "-")) {
			bad(at, "%.80q is not the name of a parameter: lower-case letters, digits, '_' and '-' between them, at most 48", name)
			continue
		}
		place, msg := p.wrong(&t.Node)
		if msg != "" {
			bad(at+place, "%s", msg)
			continue
		}
		if other := setBy[p.Sets]; other != "" {
			bad(at+".sets", "%s is set by parameter %s, too", p.Sets, other)
		}
		setBy[p.Sets] = name
	}
	if setBy[commandField] != "" {
		for field, name := range setBy {
			if _, word := wordIndex(field); word || field == argsField {
				bad("parameters."+name+".sets", "not beside parameter %s, which sets the whole command", setBy[commandField])
			}
		}
	}
	return all
}

// sample is a node as the template makes it, for its check: with a name, and with an image or a command that a parameter must give.
func sample(t *Template) *vnode.Node {
	n := t.Node
	n.Name = "sample"
	for _, p := range t.Parameters {
		switch {
		case p.Sets == imageField && n.Image.Kind == "" && len(p.Of) > 0:
			_ = n.Image.UnmarshalText([]byte(p.Of[0])) // a bad one is told of the parameter
		case p.Sets == commandField && len(n.Command) == 0:
			n.Command = []string{"sample"}
		}
	}
	return &n
}
