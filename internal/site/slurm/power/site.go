package power

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"berth/internal/node"
	"berth/internal/site/api"
	"berth/internal/site/api/client"
	"berth/internal/site/certs"
	"berth/internal/site/slurm/settings"
	"berth/internal/spec/template"
	"berth/internal/sys/refuse"
)

// site is the agents of the hosts, asked with an operator's certificate: they give it nothing but nodes of templates, and show it its own.
type site struct {
	settings *settings.Settings

	mu        sync.Mutex
	addresses map[string]string         // of agents, by host; nil: not asked yet
	away      error                     // why they are not known
	agents    map[string]*client.Client // by where they listen: one connection to each
}

func openSite(s *settings.Settings) *site {
	return &site{settings: s, agents: map[string]*client.Client{}}
}

// dial returns the client of an agent. The caller holds the lock.
func (s *site) dial(target string) (c *client.Client, err error) {
	if c = s.agents[target]; c != nil {
		return c, nil
	}
	c, err = client.New(target, func(host string) (*tls.Config, error) { return certs.Client(s.settings.API.Certs, host) })
	if err == nil {
		s.agents[target] = c
	}
	return c, err
}

// agent returns the agent of a host. Where it listens, the site's first agent says; if that is away, it is where agents usually are.
func (s *site) agent(ctx context.Context, host string) (*client.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.learn(ctx)
	return s.dial(cmp.Or(s.addresses[host], host))
}

// answers is how long the site's first agent may take to tell where the others are.
const answers = 5 * time.Second

// learn asks the site's first agent where the others are, once. The caller holds the lock.
func (s *site) learn(ctx context.Context) {
	if s.addresses != nil {
		return
	}
	s.addresses = map[string]string{}
	first, err := s.dial(s.settings.API.Agent)
	if err != nil {
		s.away = err
		return
	}
	ctx, cancel := context.WithTimeout(ctx, answers)
	defer cancel()
	var all api.SiteHosts
	s.away = first.Do(ctx, http.MethodGet, "/v1/site/hosts", nil, nil, &all)
	for _, h := range all.Hosts {
		s.addresses[h.Name] = h.Address
	}
}

// find asks where agents listen, if that is not known yet.
func (s *site) find(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.learn(ctx)
}

// ask asks the agent of a host.
func (s *site) ask(ctx context.Context, host, method, path string, query url.Values, in, out any) error {
	c, err := s.agent(ctx, host)
	if err != nil {
		return err
	}
	err = c.Do(ctx, method, path, query, in, out)
	if err != nil && s.addresses[host] == "" && s.away != nil {
		return fmt.Errorf("%w (and it knows where that of %s listens: %w)", s.away, host, err)
	}
	return err
}

// make makes a node of a template, or gives it other limits. did says what was done: "created" for a new node.
func (s *site) make(ctx context.Context, host, tmpl, name string, parameters map[string]any) (did string, err error) {
	o, err := s.apply(ctx, host, tmpl, name, parameters, 0)
	return o.Did, err
}

// apply is make of a node whose command begins after hold at the earliest. The agent refuses to reuse a node whose files were written under
// other rights, as before an admin edited the template; such a node is removed first.
func (s *site) apply(ctx context.Context, host, tmpl, name string, parameters map[string]any, hold time.Duration) (o node.Outcome, err error) {
	in := struct {
		Name       string         `json:"name"`
		Parameters map[string]any `json:"parameters,omitempty"`
		Hold       int64          `json:"hold_ms,omitempty"`
	}{name, parameters, hold.Milliseconds()}
	ask := func() error {
		return s.ask(ctx, host, http.MethodPost, "/v1/templates/"+url.PathEscape(tmpl)+"/nodes", nil, in, &o)
	}
	err = ask()
	if template.Refused(err) && s.remove(ctx, host, name) == nil {
		err = ask()
	}
	return o, err
}

// remove removes a node, and returns when nothing of it is left. One that is not there is none too many.
func (s *site) remove(ctx context.Context, host, name string) error {
	err := s.ask(ctx, host, http.MethodDelete, "/v1/nodes/"+name, url.Values{"force": {"true"}}, nil, nil)
	if refuse.KindOf(err) == refuse.NotFound {
		return nil
	}
	return err
}

// show tells of a node. The error is a refusal of kind NotFound if it is not there.
func (s *site) show(ctx context.Context, host, name string) (*node.Detail, error) {
	var d node.Detail
	if err := s.ask(ctx, host, http.MethodGet, "/v1/nodes/"+name, nil, nil, &d); err != nil {
		return nil, err
	}
	return &d, nil
}

// parameters returns the parameters of a template.
func (s *site) parameters(ctx context.Context, host, name string) (map[string]template.Parameter, error) {
	var all struct{ Templates []api.Template }
	if err := s.ask(ctx, host, http.MethodGet, "/v1/templates", nil, nil, &all); err != nil {
		return nil, err
	}
	for _, t := range all.Templates {
		if t.Name == name && t.Error != "" {
			return nil, refuse.Cannotf("", "template %s of host %s: %s", name, host, t.Error)
		}
		if t.Name == name {
			return t.Parameters, nil
		}
	}
	return nil, refuse.NotFoundf("host %s has no template %s", host, name)
}

// addressOf returns where slurmctld reaches a node: its first address that is not of this link alone.
func addressOf(o node.Outcome) (string, error) {
	for _, text := range o.Addresses {
		text, _, _ := strings.Cut(text, "/")
		if a, err := netip.ParseAddr(text); err == nil && !a.IsLinkLocalUnicast() && !a.IsLoopback() {
			return a.String(), nil
		}
	}
	return "", fmt.Errorf("node %s has no address: its template gives it an interface with address or dhcp: true, or slurm.yaml says addresses: dns", o.Node)
}
