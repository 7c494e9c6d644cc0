package nat

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"berth/internal/host/netif"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// Publish leads ports of the host to a node: elements of the maps in the table. However many there are, a packet costs two
// lookups. What the host itself sends to its loopback address is not translated.
type Publish struct {
	Places Places     `json:"places"`
	If     string     `json:"ifname"`
	V4     netip.Addr `json:"v4"`
	V6     netip.Addr `json:"v6,omitzero"`
	Ports  []string   `json:"ports"`
}

// Kind implements step.Step.
func (p *Publish) Kind() string { return "nat.publish" }

// Name is the interface's name inside.
func (p *Publish) Name() string { return p.If }

func (p *Publish) String() string {
	return fmt.Sprintf("%s %s of the host, to %s by dnat", p.If, strings.Join(p.Ports, ", "), p.V4)
}

// elements returns the elements by the name of their map: key and value.
func (p *Publish) elements() (map[string][][2]string, error) {
	all := map[string][][2]string{}
	for _, s := range p.Ports {
		port, err := vnode.ParsePort(s)
		if err != nil {
			return nil, refuse.Invalidf("port %w", err)
		}
		for i := range port.Count {
			key := fmt.Sprintf("%s . %d", port.Proto, int(port.Host)+i)
			for _, f := range []struct {
				family string
				to     netip.Addr
				takes  bool
			}{{"4", p.V4, !port.Address.Is6()}, {"6", p.V6, !port.Address.Is4()}} {
				if !f.to.IsValid() || !f.takes {
					continue
				}
				in, key := "any"+f.family, key
				if port.Address.IsValid() && !port.Address.IsUnspecified() {
					in, key = "one"+f.family, port.Address.String()+" . "+key
				}
				all[in] = append(all[in], [2]string{key, fmt.Sprintf("%s . %d", f.to, int(port.Node)+i)})
			}
		}
	}
	return all, nil
}

// script makes a command of nft for all elements.
func (p *Publish) script(commands ...string) (string, error) {
	all, err := p.elements()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, command := range commands {
		for _, name := range []string{"any4", "one4", "any6", "one6"} {
			if len(all[name]) == 0 {
				continue
			}
			fmt.Fprintf(&b, "%s element %s %s %s {\n", command, family, p.Places.Bridge, name)
			for _, e := range all[name] {
				fmt.Fprintf(&b, "\t%s : %s,\n", e[0], e[1])
			}
			b.WriteString("}\n")
		}
	}
	return b.String(), nil
}

// Do adds the elements, and ends the flows of datagrams that clients have begun before: the kernel remembers where such a flow led, to the
// host itself, for as long as its client sends.
func (p *Publish) Do(ctx context.Context) error {
	script, err := p.script("add")
	if err != nil {
		return err
	}
	if err := apply(ctx, script); err != nil {
		return fmt.Errorf("publish %s: %w", strings.Join(p.Ports, ", "), err)
	}
	return p.cutEarlier()
}

// Verify reads the elements back.
func (p *Publish) Verify(ctx context.Context) error {
	script, err := p.script("get")
	if err != nil {
		return err
	}
	out, err := nft(ctx, script, "-f", "-")
	if err != nil {
		return fmt.Errorf("read back what publishes %s: %w", strings.Join(p.Ports, ", "), err)
	}
	all, err := p.elements()
	if err != nil {
		return err
	}
	have := string(out)
	for _, elements := range all {
		for _, e := range elements {
			if !strings.Contains(have, e[0]+" : "+e[1]) {
				return fmt.Errorf("port %s of the host does not lead to %s", e[0], e[1])
			}
		}
	}
	return nil
}

// Undo removes the elements, whether all are there or none: in one transaction it adds and removes them. Without the table
// there are none. Then it ends the flows of datagrams that they have led to the node.
func (p *Publish) Undo(ctx context.Context) error {
	script, err := p.script("add", "delete")
	if err != nil {
		return nil //nolint:nilerr // such ports were never published
	}
	if err := p.unpublish(ctx, script); err != nil && !absent(err) {
		return fmt.Errorf("stop publishing %s: %w", strings.Join(p.Ports, ", "), err)
	}
	return cutDatagrams(p.datagrams())
}

// unpublish applies a script under the host-wide lock: who makes the table anew meanwhile has read that the ports are published.
func (p *Publish) unpublish(ctx context.Context, script string) error {
	if p.Places.Lock != "" {
		lock, err := netif.Lock(ctx, p.Places.Lock)
		if err != nil {
			return err
		}
		defer lock.Close()
	}
	return apply(ctx, script)
}

// datagrams returns the addresses to which ports of UDP lead.
func (p *Publish) datagrams() (all []netip.Addr) {
	for _, s := range p.Ports {
		port, err := vnode.ParsePort(s)
		if err != nil || port.Proto != "udp" {
			continue
		}
		if p.V4.IsValid() && !port.Address.Is6() {
			all = append(all, p.V4)
		}
		if p.V6.IsValid() && !port.Address.Is4() {
			all = append(all, p.V6)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// cutEarlier ends the flows of datagrams to the published ports at the host's own addresses, of the families to which a node has an address.
func (p *Publish) cutEarlier() (err error) {
	var flows sentTo
	for _, s := range p.Ports {
		if port, err := vnode.ParsePort(s); err == nil && port.Proto == "udp" {
			flows.ports = append(flows.ports, port)
		}
	}
	if len(flows.ports) == 0 {
		return nil
	}
	if flows.own, err = hostAddresses(); err != nil {
		return err
	}
	for _, to := range []netip.Addr{p.V4, p.V6} {
		if !to.IsValid() {
			continue
		}
		if err := cut(to.Is6(), flows); err != nil {
			return fmt.Errorf("forget earlier flows to %s: %w", strings.Join(p.Ports, ", "), err)
		}
	}
	return nil
}
