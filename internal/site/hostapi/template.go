package hostapi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"berth/internal/node"
	"berth/internal/node/autostart"
	"berth/internal/site/api"
	"berth/internal/spec/roles"
	"berth/internal/spec/template"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// Templates lists the templates as the one who asks may use them. Mistakes in a template are shown to the admins of this host only.
func (h *Host) Templates(who roles.Who) ([]api.Template, error) {
	dir := h.Layout.Etc("templates")
	names, err := template.Names(dir)
	all := make([]api.Template, 0, len(names))
	for _, name := range names {
		t, err := template.Read(dir, name)
		if err != nil {
			all = append(all, api.Template{Name: name, Error: "it cannot be used: on its host, berth template ls says why", Parameters: map[string]template.Parameter{}})
			continue
		}
		if err := t.For(who); err != nil {
			all = append(all, api.Template{Name: name, Error: err.Error(), Parameters: map[string]template.Parameter{}})
			continue
		}
		one := api.Template{Name: name, Description: t.Description, Parameters: t.Parameters, Node: nodeOf(t)}
		if one.Parameters == nil {
			one.Parameters = map[string]template.Parameter{}
		}
		all = append(all, one)
	}
	return all, err
}

// nodeOf returns the limits of a template's nodes.
func nodeOf(t *template.Template) *api.TemplateNode {
	n := &t.Node
	vnode.Defaults(n)
	has := &api.TemplateNode{Class: string(n.Class), CPUs: float64(n.CPU.Max) / 1000, Memory: int64(n.Memory.Max)}
	for _, s := range n.Scratch {
		has.Scratch += int64(s.Size)
	}
	for _, i := range n.Network {
		has.Networks = append(has.Networks, string(i.Mode))
		if i.Mode == vnode.SRIOV {
			has.Functions++
		}
	}
	return has
}

// ApplyTemplate makes a node from a template of this host's admins, for the one who asks, who becomes its owner. A node of this name that is another's is left
// alone: of two that ask at the same time, the second finds the first one's. The command of a node that is started begins after hold at the earliest.
func (h *Host) ApplyTemplate(ctx context.Context, who roles.Who, name, as string, parameters map[string]any, hold time.Duration) (*node.Outcome, error) {
	held := &node.Hold{Until: time.Now().Add(hold)}
	if err := h.Layout.Reachable(); err != nil {
		return nil, err
	}
	t, err := template.Read(h.Layout.Etc("templates"), name)
	if err != nil {
		return nil, err
	}
	if err := t.For(who); err != nil {
		return nil, err
	}
	owner := who.Name
	n, err := t.Make(owner, as, parameters)
	if err != nil {
		return nil, err
	}
	vnode.Defaults(n)
	done, err := h.takes(t, made{owner, name, as})
	if err != nil {
		return nil, err
	}
	defer done()
	o, err := h.Guarded(func(there *node.Stored) error {
		if roles.OwnerOf(there.Now.Labels) != roles.Owner(owner) {
			return refuse.Busyf("the name %s is taken by a node that is not of %s: choose another", n.Name, owner)
		}
		return sameRights(t, n, there)
	}).Granting(t.Rights()).Holding(held).Apply(ctx, n, true)
	if err != nil {
		return nil, err
	}
	o.Addresses, o.Held = h.Addresses(n), held.Waited.Milliseconds()
	_, err = autostart.Applied(h.Layout, []*vnode.Node{n})
	return o, err
}

// made is a node of a template.
type made struct{ owner, template, node string }

// takes refuses a node more than a template lets its owner have here, with those that are made at the same time. done is called when it is made.
func (h *Host) takes(t *template.Template, m made) (done func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.Most > 0 {
		specs, err := h.Specs()
		if err != nil {
			return nil, err
		}
		has := map[string]bool{}
		for _, n := range specs {
			has[n.Name] = n.Labels[roles.OwnerLabel] == m.owner && n.Labels[roles.TemplateLabel] == m.template
		}
		for other := range h.making {
			has[other.node] = has[other.node] || other.owner == m.owner && other.template == m.template
		}
		maps.DeleteFunc(has, func(_ string, is bool) bool { return !is })
		if !has[m.node] && len(has) >= t.Most {
			return nil, refuse.Busyf("%s has %d nodes of template %s on this host, which is the most; remove one, or make it on another host", m.owner, len(has), m.template)
		}
	}
	h.making[m]++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.making[m]--; h.making[m] == 0 {
			delete(h.making, m)
		}
	}, nil
}

// sameRights refuses to make node n of the template in place of an existing one that had other rights: files written under the old rights,
// in its delta and its scratch volumes, would get the new ones.
func sameRights(t *template.Template, n *vnode.Node, there *node.Stored) error {
	var differ string
	from := there.Applied.Labels[roles.TemplateLabel]
	switch {
	case len(there.Rights) > 0:
		all := template.Differ(there.Rights, t.Rights())
		if len(all) == 0 && !slices.EqualFunc(there.Applied.Network, n.Network, func(a, b vnode.Network) bool { return slices.Equal(a.Address, b.Address) }) {
			all = []string{"numbered"} // nothing else of a template gives the node of a name another address
		}
		differ = strings.Join(all, ", ")
	case from == "":
		differ = "those of a free spec"
	case from != t.Name:
		differ = "those of template " + from
	default:
		differ = strings.Join(t.DifferNodes(there.Applied, n), ", ")
	}
	if differ == "" {
		return nil
	}
	return template.Refuse(n.Name, fmt.Sprintf(" was made with other rights than template %s gives now (%s), and keeps what was written with them", t.Name, differ))
}
