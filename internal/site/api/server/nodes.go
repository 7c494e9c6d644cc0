package server

import (
	"encoding/json"
	"io"
	"slices"
	"sort"
	"strings"
	"time"

	"berth/internal/node"
	"berth/internal/site/api"
	"berth/internal/spec"
	"berth/internal/spec/roles"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

// name returns the node that the path names, if the caller may do this to it.
func (c *call) name(act roles.Act) (string, error) {
	name := c.PathValue("name")
	if vnode.CheckName(name) != nil {
		return "", refuse.NotFoundf("%.80q is not a node's name", name)
	}
	return name, c.mayTo(act, name)
}

// labelled reports whether labels are as asked: NAME or NAME=VALUE, all of them.
func labelled(labels map[string]string, asked []string) bool {
	for _, a := range asked {
		name, value, valued := strings.Cut(a, "=")
		if has, ok := labels[name]; !ok || valued && has != value {
			return false
		}
	}
	return true
}

// page returns the entries after a key, at most limit of them, and the key to go on with. all is sorted by key.
func page[T any](all []T, key func(T) string, after string, limit int64) (part []T, next string) {
	from := 0
	if after != "" {
		from = sort.Search(len(all), func(i int) bool { return key(all[i]) > after })
	}
	all = all[from:]
	if limit > 0 && int64(len(all)) > limit {
		all = all[:limit]
		next = key(all[limit-1])
	}
	return list(all), next
}

func (c *call) listNodes() (any, error) {
	if err := c.may(roles.NodeList); err != nil {
		return nil, err
	}
	all, err := c.server.Host.Nodes(c.ctx())
	if err != nil {
		return nil, err
	}
	q := c.query
	all = slices.DeleteFunc(slices.Clone(all), func(s node.Status) bool {
		return !strings.HasPrefix(s.Name, q.text("name")) || q.text("state") != "" && s.State != q.text("state") ||
			!labelled(s.Labels, q.all("label")) || !roles.Sees(c.who, roles.OwnerOf(s.Labels))
	})
	part, next := page(all, func(s node.Status) string { return s.Name }, q.text("continue"), q.number("limit", 0))
	return nodes{part, next}, nil
}

func (c *call) showNode() (any, error) {
	name, err := c.name(roles.NodeRead)
	if err != nil {
		return nil, err
	}
	return c.server.Host.Node(c.ctx(), name, c.owner(roles.NodeRead))
}

func (c *call) apply() (any, error) {
	if err := c.may(roles.NodeApply); err != nil {
		return nil, err
	}
	if err := c.media("application/yaml", "application/json"); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(c.Body, spec.LongestFile+1))
	if err != nil {
		return nil, bodyError(err)
	}
	file := c.query.text("file")
	if file == "" {
		file = "spec"
	}
	named, _ := spec.Parse(file, text) // Apply says what is wrong with it
	var names []string
	for _, n := range named {
		names = append(names, n.Name)
	}
	c.line.On = strings.Join(names, " ")
	if err := c.begins(""); err != nil {
		return nil, err
	}
	all, err := c.server.Host.Apply(c.ctx(), file, text, c.query.yes("restart"))
	if err != nil {
		return nil, err
	}
	return outcomes{list(all)}, nil
}

// mostHold is the most milliseconds that a command is held: the node is locked meanwhile.
const mostHold = 5000

func (c *call) applyTemplate() (any, error) {
	var f fill
	if err := c.may(roles.NodeMake, roles.Owner(c.who.Name)); err != nil { // before the body
		return nil, err
	}
	if err := c.readJSON(&f); err != nil {
		return nil, err
	}
	parameters, err := json.Marshal(f.Parameters)
	if err != nil {
		return nil, err
	}
	c.line.On, c.line.Detail = f.Name, c.PathValue("template")+" "+string(parameters)
	if err := c.mayMake(f.Name); err != nil {
		return nil, err
	}
	if f.Hold < 0 || f.Hold > mostHold {
		return nil, refuse.Invalidf("hold_ms: %d is not allowed: 0 to %d", f.Hold, mostHold)
	}
	if err := c.begins(c.line.Detail); err != nil {
		return nil, err
	}
	return c.server.Host.ApplyTemplate(c.ctx(), c.who, c.PathValue("template"), f.Name, f.Parameters, time.Duration(f.Hold)*time.Millisecond)
}

// did acts on the node that the path names, and says what changed.
func (c *call) did(act roles.Act, yes, no string, do func(name string, owner roles.Owner) (bool, error)) (any, error) {
	name, err := c.name(act)
	if err != nil {
		return nil, err
	}
	if err := c.begins(c.URL.RawQuery); err != nil {
		return nil, err
	}
	changed, err := do(name, c.owner(act))
	if err != nil {
		return nil, err
	}
	return api.Done{Name: name, Did: text.Either(changed, yes, no)}, nil
}

// grace returns how long a stop waits.
func (c *call) grace() time.Duration {
	if c.query.text("grace") == "" {
		return node.OwnGrace
	}
	return time.Duration(c.query.number("grace", 0)) * time.Second
}

func (c *call) startNode() (any, error) {
	return c.did(roles.NodeStart, "started", "runs already", func(name string, owner roles.Owner) (bool, error) { return c.server.Host.Start(c.ctx(), name, owner) })
}

func (c *call) stopNode() (any, error) {
	return c.did(roles.NodeEnd, "stopped", "was not running", func(name string, owner roles.Owner) (bool, error) {
		return c.server.Host.Stop(c.ctx(), name, c.grace(), owner)
	})
}

func (c *call) restartNode() (any, error) {
	return c.did(roles.NodeStart, "restarted", "started", func(name string, owner roles.Owner) (bool, error) {
		return c.server.Host.Restart(c.ctx(), name, c.grace(), owner)
	})
}

func (c *call) removeNode() (any, error) {
	return c.did(roles.NodeEnd, "removed", "removed", func(name string, owner roles.Owner) (bool, error) {
		return true, c.server.Host.Remove(c.ctx(), name, c.query.yes("force"), owner)
	})
}

func (c *call) setLimits() (any, error) {
	name, err := c.name(roles.NodeSet)
	if err != nil {
		return nil, err
	}
	var asked map[string]string
	if err := c.readJSON(&asked); err != nil {
		return nil, err
	}
	if len(asked) == 0 {
		return nil, refuse.Invalidf(`no limit given: {"cpu.max": "1.5"}`)
	}
	var changes []node.KeyValue
	for k, v := range asked {
		if k == "" || v == "" {
			return nil, refuse.Invalidf("%q: %q: want a key and a value, for example %q: %q", k, v, "cpu.max", "1.5")
		}
		changes = append(changes, node.KeyValue{Key: k, Value: v})
	}
	slices.SortFunc(changes, func(a, b node.KeyValue) int { return strings.Compare(a.Key, b.Key) })
	var detail []string
	for _, k := range changes {
		detail = append(detail, k.Key+"="+k.Value)
	}
	if err := c.begins(strings.Join(detail, " ")); err != nil {
		return nil, err
	}
	done, err := c.server.Host.Set(c.ctx(), name, changes)
	if err != nil {
		return nil, err
	}
	return results{list(done)}, nil
}

func (c *call) pullImage() (any, error) {
	var f fetch
	if err := c.may(roles.ImageChange); err != nil {
		return nil, err
	}
	if err := c.readJSON(&f); err != nil {
		return nil, err
	}
	c.line.On = f.Ref
	if err := c.begins(f.Name); err != nil {
		return nil, err
	}
	return c.server.Host.PullImage(c.ctx(), f.Ref, f.Name)
}

func (c *call) removeImage() (any, error) {
	if err := c.may(roles.ImageChange); err != nil {
		return nil, err
	}
	name := c.PathValue("image")
	if err := c.begins(""); err != nil {
		return nil, err
	}
	if err := c.server.Host.RemoveImage(c.ctx(), name); err != nil {
		return nil, err
	}
	return api.Done{Name: name, Did: "removed"}, nil
}
