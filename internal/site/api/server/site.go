package server

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"berth/internal/site/api"
	"berth/internal/spec/roles"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

// site returns the site, if this host belongs to one and the caller may do this.
func (c *call) site(act roles.Act) (Site, error) {
	if err := c.may(act); err != nil {
		return nil, err
	}
	if c.server.Site == nil {
		return nil, refuse.Cannotf("docs/agent.md says how hosts become a site", "this host belongs to no site")
	}
	return c.server.Site, nil
}

func (c *call) listHosts() (any, error) {
	s, err := c.site(roles.HostRead)
	if err != nil {
		return nil, err
	}
	all, stale, err := s.Hosts(c.ctx())
	if err != nil {
		return nil, err
	}
	return api.SiteHosts{Hosts: list(all), Stale: stale}, nil
}

func siteKey(n api.SiteNode) string { return n.Host + "/" + n.Name }

func (c *call) listSiteNodes() (any, error) {
	s, err := c.site(roles.NodeList)
	if err != nil {
		return nil, err
	}
	all, stale, err := s.Nodes(c.ctx())
	if err != nil {
		return nil, err
	}
	q := c.query
	is := func(want, has string) bool { return want == "" || want == has }
	all = slices.DeleteFunc(slices.Clone(all), func(n api.SiteNode) bool {
		return !is(q.text("host"), n.Host) || !is(q.text("owner"), n.Owner) || !is(q.text("phase"), n.Phase) ||
			!strings.HasPrefix(n.Name, q.text("name")) || !labelled(n.Labels, q.all("label")) || !roles.Sees(c.who, roles.Owner(n.Owner))
	})
	slices.SortFunc(all, func(a, b api.SiteNode) int { return cmp.Compare(siteKey(a), siteKey(b)) })
	part, next := page(all, siteKey, q.text("continue"), q.number("limit", 0))
	return api.SiteNodes{Nodes: part, Continue: next, Stale: stale}, nil
}

func (c *call) drain() (any, error)   { return c.drained(true) }
func (c *call) undrain() (any, error) { return c.drained(false) }

func (c *call) drained(on bool) (any, error) {
	s, err := c.site(roles.SiteChange)
	if err != nil {
		return nil, err
	}
	host := c.PathValue("host")
	if err := c.begins(text.Either(on, "drain", "undrain")); err != nil {
		return nil, err
	}
	changed, err := s.Drain(c.ctx(), host, on)
	if err != nil {
		return nil, err
	}
	did := text.Either(changed, "drained", "was drained already")
	if !on {
		did = text.Either(changed, "takes nodes again", "was not drained")
	}
	return api.Done{Name: host, Did: did}, nil
}

func (c *call) forget() (any, error) {
	s, err := c.site(roles.SiteChange)
	if err != nil {
		return nil, err
	}
	host := c.PathValue("host")
	if err := c.begins("forget"); err != nil {
		return nil, err
	}
	// An act that has begun is completed: a client that breaks off must not leave half of a host's claims.
	if err := s.Forget(context.WithoutCancel(c.ctx()), host); err != nil {
		return nil, err
	}
	return api.Done{Name: host, Did: "forgotten"}, nil
}
