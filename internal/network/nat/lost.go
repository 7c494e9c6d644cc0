package nat

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"strings"

	"berth/internal/sys/step"
)

// makeTable makes the table by its script, or brings it to that state. Where other nodes are on the bridge and the table is not there, another
// program has removed it, as nft flush ruleset does: it is made again with the ports of all of them. The caller holds the host-wide lock.
func (b *Bridge) makeTable(ctx context.Context, script string) error {
	users, err := b.Places.users()
	if err != nil {
		return err
	}
	if len(users) > 1 { // this node is one of them
		err := apply(ctx, fmt.Sprintf("flush chain %s %s publish\n", family, b.Places.Bridge)+script) // the kernel takes nothing of it without the table
		if !absent(err) {
			return err
		}
	}
	var lost []*Publish
	for _, name := range users {
		p, err := b.Places.publishedBy(name)
		if err != nil {
			continue // its journal is damaged: a look at the node tells which ports it has not
		}
		lost = append(lost, p...)
	}
	for _, p := range lost {
		add, err := p.script("add")
		if err != nil {
			return err
		}
		script += add
	}
	if err := apply(ctx, script); err != nil {
		return err
	}
	for _, p := range lost {
		_ = p.cutEarlier() // a flow that is left leads elsewhere until it ends; this node's start does not depend on it
	}
	return nil
}

// publishedBy returns the steps that have published the ports of a node on the bridge, by its journal.
func (p Places) publishedBy(name string) (all []*Publish, err error) {
	boot, err := step.BootID()
	if err != nil {
		return nil, err
	}
	steps, err := step.Standing(filepath.Join(p.Run, name, "journal"), boot, Kinds()) // the link leads to its live folder: layout.Node.Journal
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, s := range steps {
		if s, ok := s.(*Publish); ok && s.Places.Bridge == p.Bridge {
			all = append(all, s)
		}
	}
	return all, err
}

// Table is what the table of a root has in the kernel.
type Table struct {
	name  string
	there bool
	rules int
	ipv6  bool            // a port of it leads to an IPv6 address
	leads map[string]bool // the keys of its maps, each behind the map's name: "any4 tcp . 8080"
}

// ReadTable reads the table that has the name of a root's bridge.
func ReadTable(ctx context.Context, bridge string) (*Table, error) {
	t := &Table{name: bridge, leads: map[string]bool{}}
	all, err := list(ctx, "list", "table", family, bridge)
	if absent(err) {
		return t, nil
	}
	if err != nil {
		return nil, err
	}
	t.there = true
	for _, o := range all {
		if o.Rule != nil {
			t.rules++
		}
		if o.Map == nil {
			continue
		}
		for _, e := range o.Map.Elem {
			key := keyOf(e)
			if key == "" {
				return nil, fmt.Errorf("nft lists an element of map %s in a way that is not known: %s", o.Map.Name, e)
			}
			t.leads[o.Map.Name+" "+key] = true
			t.ipv6 = t.ipv6 || strings.HasSuffix(o.Map.Name, "6")
		}
	}
	return t, nil
}

// Trouble says what another program has taken from a network that is connected by the table; "" if nothing. ports are those that the network
// publishes.
func (t *Table) Trouble(ports []string) string {
	if !t.there || t.rules == 0 {
		return fmt.Sprintf("table %s of nftables is gone or empty: another program removed its rules", t.name)
	}
	var lost []string
	for _, port := range ports {
		all, err := (&Publish{V4: netip.IPv4Unspecified(), V6: netip.IPv6Unspecified(), Ports: []string{port}}).elements()
		if err != nil {
			continue
		}
		delete(all, "any6") // not in a network without IPv6; its ports of all addresses are in any4, too
		if !t.ipv6 {
			delete(all, "one6") // likewise
		}
		gone := false
		for name, elements := range all {
			for _, e := range elements {
				gone = gone || !t.leads[name+" "+e[0]]
			}
		}
		if gone {
			lost = append(lost, port)
		}
	}
	if len(lost) == 0 {
		return ""
	}
	return fmt.Sprintf("the host's port %s leads nowhere: another program removed it from table %s of nftables", strings.Join(lost, ", "), t.name)
}
