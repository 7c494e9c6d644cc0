package template

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth/internal/spec/roles"
	"berth/internal/spec/vnode"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// wrong returns the mistake in a parameter, and its key (".max"); msg is "" if there is none.
func (p *Parameter) wrong(n *vnode.Node) (key, msg string) {
	if !slices.Contains(types(), p.Type) {
		return ".type", fmt.Sprintf("%.80q is not a type: number, integer, size, rate, bitrate, string, choice or list", p.Type)
	}
	if msg := p.wrongField(n); msg != "" {
		return ".sets", msg
	}
	if key, msg := p.wrongKeys(); msg != "" {
		return key, msg
	}
	if p.Type.ordered() {
		if key, msg := p.wrongBounds(n); msg != "" {
			return key, msg
		}
	}
	for i, one := range p.Of {
		at := fmt.Sprintf(".of[%d]", i)
		if slices.Index(p.Of, one) < i {
			return at, "the value is there already"
		}
		if err := p.try(n, string(one)); err != nil {
			return at, err.Error()
		}
	}
	if p.Default != nil {
		if err := p.try(n, string(*p.Default)); err != nil {
			return ".default", err.Error()
		}
	}
	return "", ""
}

// try puts a value into a copy of the node, and validates what it changed.
func (p *Parameter) try(n *vnode.Node, value string) error {
	c := *n
	c.Env, c.Labels, c.Command = maps.Clone(n.Env), maps.Clone(n.Labels), slices.Clone(n.Command)
	c.IO, c.Network = slices.Clone(n.IO), slices.Clone(n.Network)
	if err := p.apply(&c, n, value); err != nil {
		return err
	}
	before := vnode.Validate(n)
	for _, found := range vnode.Validate(&c) {
		if !slices.ContainsFunc(before, func(o vnode.Problem) bool { return o.Field == found.Field }) {
			return fmt.Errorf("%s", found)
		}
	}
	return nil
}

// wrongField returns the mistake in the field that a parameter sets.
func (p *Parameter) wrongField(n *vnode.Node) string {
	name, isLabel := strings.CutPrefix(p.Sets, labelField)
	variable, isEnv := strings.CutPrefix(p.Sets, envField)
	i, isWord := wordIndex(p.Sets)
	limit, isLimit := limitType(p.Sets)
	switch {
	case p.Sets == imageField:
		if p.Type != Choice {
			return "image takes the type choice: one of the images that you list"
		}
	case p.Sets == commandField, p.Sets == argsField:
		if p.Type != List {
			return p.Sets + " takes the type list"
		}
		if p.Sets == argsField && len(n.Command) == 0 {
			return "args go behind the template's command, which it does not have"
		}
	case p.Type == List:
		return "the type list is for command and args"
	case isWord:
		if i >= len(n.Command) {
			return fmt.Sprintf("the template's command has %d words", len(n.Command))
		}
	case isLabel:
		if name == "" || strings.HasPrefix(name, roles.OwnLabels) {
			return "labels that begin with " + roles.OwnLabels + " are Berth's own"
		}
	case isEnv:
		return vnode.CheckVariable(variable, "")
	case isLimit:
		if p.Type != limit {
			return fmt.Sprintf("%s takes the type %s", p.Sets, limit)
		}
		return p.wrongLimit(n)
	default:
		return fmt.Sprintf("%.80q is not for parameters: image, command, args, command[N], env.NAME, labels.NAME, and limits as berth set names them; all else comes from the template alone", p.Sets)
	}
	return ""
}

// wrongLimit returns the mistake in a limit that the node cannot have, or has no bound for.
func (p *Parameter) wrongLimit(n *vnode.Node) string {
	perHost := strings.HasPrefix(p.Sets, "rlimits.") || strings.HasPrefix(p.Sets, "hugepages.")
	switch {
	case perHost && bound(n, p.Sets) == "":
		return p.Sets + " is not in the template's node: its value there is the upper bound"
	case !perHost && !slices.Contains(vnode.Settable(n), p.Sets):
		return p.Sets + " is no limit of the template's node"
	}
	return ""
}

// wrongKeys says which key does not go with the type.
func (p *Parameter) wrongKeys() (key, msg string) {
	isText := p.Type == String || p.Type == List
	for _, k := range []struct {
		key         string
		there, fits bool
	}{
		{".min", p.Min != nil, p.Type.ordered()},
		{".max", p.Max != nil, p.Type.ordered()},
		{".of", p.Of != nil, p.Type == Choice},
		{".pattern", p.Pattern != "", isText},
		{".length", p.Length != 0, isText},
		{".words", p.Words != 0, p.Type == List},
		{".default", p.Default != nil, p.Type != List},
	} {
		if k.there && !k.fits {
			return k.key, "does not go with the type " + string(p.Type)
		}
	}
	switch {
	case p.Type == Choice && len(p.Of) == 0:
		return ".of", "missing: the values to choose from"
	case p.Length < 0 || p.Length > mostLength:
		return ".length", fmt.Sprintf("%d is not allowed: 1 to %d", p.Length, mostLength)
	case p.Words < 0 || p.Words > mostWords:
		return ".words", fmt.Sprintf("%d is not allowed: 1 to %d", p.Words, mostWords)
	}
	if _, err := compile(p.Pattern); err != nil {
		return ".pattern", "not a regular expression: " + err.Error()
	}
	return "", ""
}

// wrongBounds returns the mistake in the bounds of a value.
func (p *Parameter) wrongBounds(n *vnode.Node) (key, msg string) {
	for key, t := range map[string]*Text{".min": p.Min, ".max": p.Max} {
		if t != nil {
			if _, err := p.Type.amount(string(*t)); err != nil {
				return key, err.Error()
			}
		}
	}
	own := ""
	if _, isLimit := limitType(p.Sets); isLimit {
		own = bound(n, p.Sets)
	}
	if p.Max == nil {
		if own == "" {
			return ".max", "missing: without a bound anything could be asked for"
		}
		return "", ""
	}
	high, _ := p.Type.amount(string(*p.Max))
	if p.Min != nil {
		if low, _ := p.Type.amount(string(*p.Min)); low.Cmp(high) > 0 {
			return ".max", fmt.Sprintf("%s is below min %s", *p.Max, *p.Min)
		}
	}
	if own != "" {
		if most, err := p.Type.amount(own); err == nil && high.Cmp(most) > 0 {
			return ".max", fmt.Sprintf("%s is above the template's own %s: limits are only lowered", *p.Max, own)
		}
	}
	return "", ""
}
