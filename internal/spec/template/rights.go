package template

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"

	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// removeFirst begins the remedy for a node that stays as it is because of its rights.
const removeFirst = "remove it first: berth rm "

// Refuse returns the refusal to make a node from the files of the existing one.
func Refuse(node, why string) error {
	return &refuse.Error{Kind: refuse.Busy, What: "node " + node + why, Remedy: removeFirst + node}
}

// Refused reports whether an error is one of Refuse, also one that an agent told: the node can be made once the one that is there is removed.
func Refused(err error) bool {
	r, ok := errors.AsType[*refuse.Error](err)
	return ok && r.Kind == refuse.Busy && strings.HasPrefix(r.Remedy, removeFirst)
}

// noRights are the keys of a spec that give a node no rights over anything beside it: limits, the storage that they count, and
// descriptions. All others do, also those that later versions add.
func noRights() []string {
	return []string{
		"name", "labels", "class", "restart", "autostart", "stop", "cpu", "memory", "hugepages", "pids", "oom_score_adj", "rlimits", "io",
		"tmpfs", "scratch", "delta",
	}
}

// Rights are the rights of a template's nodes beside their limits: a digest for each key of the spec that gives rights, and for each
// parameter that fills one in. If two templates have equal rights, files that were written in a node of one may stay in a node of the
// other. The digests are kept with nodes, so the data from which they are made must not change.
func (t *Template) Rights() map[string]string {
	all := rightsOf(&t.Node)
	for name, p := range t.Parameters {
		if _, limit := limitType(p.Sets); !limit && !strings.HasPrefix(p.Sets, labelField) {
			p.Description, p.Default = "", nil
			all["parameter "+name] = digest(p)
		}
	}
	return all
}

// rightsOf returns a digest for each key of a spec that gives rights.
func rightsOf(n *vnode.Node) map[string]string {
	c := *n
	c.Health = vnode.Health{Command: n.Health.Command}
	c.Network = slices.Clone(n.Network)
	for i := range c.Network {
		c.Network[i].Rate, c.Network[i].Priority = vnode.NetRate{}, ""
	}
	all := map[string]string{}
	for f, v := range reflect.ValueOf(&c).Elem().Fields() {
		key := vnode.FieldKey(f)
		if empty := v.IsZero() || (v.Kind() == reflect.Map || v.Kind() == reflect.Slice) && v.Len() == 0; !empty && !slices.Contains(noRights(), key) {
			all[key] = digest(v.Interface())
		}
	}
	return all
}

func digest(v any) string {
	text, _ := json.Marshal(v) // of plain data: cannot fail
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Differ returns in which keys, and by which parameters, two templates give other rights.
func Differ(a, b map[string]string) []string {
	both := maps.Clone(a)
	if both == nil {
		both = map[string]string{}
	}
	maps.Copy(both, b)
	maps.DeleteFunc(both, func(key, _ string) bool { return a[key] == b[key] })
	return sortedKeys(both)
}

// DifferNodes returns in which keys two nodes of the template have other rights, apart from fields that its parameters fill in. It is for a
// node without stored rights.
func (t *Template) DifferNodes(a, b *vnode.Node) []string { return Differ(t.fixed(a), t.fixed(b)) }

// fixed returns the rights (rightsOf) of the fields that the template's parameters do not fill in.
func (t *Template) fixed(n *vnode.Node) map[string]string {
	c := *n
	c.Env, c.Command = maps.Clone(n.Env), slices.Clone(n.Command)
	for _, p := range t.Parameters {
		if name, ok := strings.CutPrefix(p.Sets, envField); ok {
			delete(c.Env, name)
		}
		if i, ok := wordIndex(p.Sets); ok && i < len(c.Command) {
			c.Command[i] = ""
		}
		switch p.Sets {
		case imageField:
			c.Image = vnode.Image{}
		case commandField:
			c.Command = nil
		case argsField:
			c.Command = c.Command[:min(len(c.Command), len(t.Node.Command))]
		}
	}
	return rightsOf(&c)
}
