package sitecli

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"sync"

	"berth/internal/site/api"
	"berth/internal/site/api/client"
	"berth/internal/site/certs"
	"berth/internal/site/slurm/settings"
	"berth/internal/site/slurm/slurmconf"
	"berth/internal/spec/vnode"
	"berth/internal/sys/fork"
	"berth/internal/sys/refuse"
)

// slurmSettings reads the settings at path; "" is the file in its place.
func (a *app) slurmSettings(path string) (*settings.Settings, error) {
	l, err := a.layout()
	if err != nil {
		return nil, err
	}
	if path == "" {
		path = settings.Path(l)
	}
	return settings.Read(l, path)
}

// slurmClient returns a client of the agent at target, which shows the certificate that the settings name, or else that of the user.
func (a *app) slurmClient(s *settings.Settings, target string) (*client.Client, error) {
	return client.New(target, func(host string) (*tls.Config, error) {
		config, err := certs.Client(s.API.Certs, host)
		if err == nil {
			return config, nil
		}
		dir, own := certs.UserDir()
		if own == nil {
			if config, own = certs.Client(dir, host); own == nil {
				return config, nil
			}
		}
		return nil, err
	})
}

// mostAsked is how many agents are asked at the same time.
const mostAsked = 16

// slurmFacts asks the agents of all hosts of the settings. Of one that does not answer it says why.
func (a *app) slurmFacts(ctx context.Context, s *settings.Settings) map[string]slurmconf.Facts {
	all := map[string]slurmconf.Facts{}
	there, err := a.slurmHosts(ctx, s)
	var mu sync.Mutex
	keep := func(host string, f slurmconf.Facts) {
		mu.Lock()
		defer mu.Unlock()
		all[host] = f
	}
	var asked sync.WaitGroup
	room := make(chan struct{}, mostAsked)
	for i := range s.Hosts {
		for _, host := range s.Hosts[i].Hosts {
			h, ok := there[host]
			switch {
			case err != nil:
				keep(host, slurmconf.Facts{Missing: err.Error()})
				continue
			case !ok:
				keep(host, slurmconf.Facts{Missing: "the site has no host of this name"})
				continue
			case !h.Alive || h.Facts == nil:
				keep(host, slurmconf.Facts{Missing: "its agent is away"})
				continue
			}
			asked.Go(func() {
				room <- struct{}{}
				defer func() { <-room }()
				f := slurmconf.Facts{CPUs: h.Facts.CPUs, Memory: vnode.Bytes(h.Facts.Memory), Slots: h.Facts.Slots, Rack: h.Facts.Rack}
				var err error
				if f.Template, err = a.slurmTemplate(ctx, s, h, s.Hosts[i].Template); err != nil {
					f.Missing = err.Error()
				}
				keep(host, f)
			})
		}
	}
	asked.Wait()
	return all
}

// slurmHosts asks one agent for the hosts of the site.
func (a *app) slurmHosts(ctx context.Context, s *settings.Settings) (map[string]api.Host, error) {
	target := a.host
	if target == "" {
		target = s.API.Agent
	}
	c, err := a.slurmClient(s, target)
	if err != nil {
		return nil, err
	}
	var site api.SiteHosts
	if err := c.Do(ctx, http.MethodGet, "/v1/site/hosts", nil, nil, &site); err != nil {
		return nil, err
	}
	all := map[string]api.Host{}
	for _, h := range site.Hosts {
		all[h.Name] = h
	}
	return all, nil
}

// slurmTemplate asks a host for the limits of its template's nodes; nil if it has no such template, or its agent does
// not tell.
func (a *app) slurmTemplate(ctx context.Context, s *settings.Settings, h api.Host, name string) (*slurmconf.Template, error) {
	target := h.Address
	if target == "" {
		target = h.Name
	}
	c, err := a.slurmClient(s, target)
	if err != nil {
		return nil, err
	}
	var all struct {
		Templates []api.Template `json:"templates"`
	}
	if err := c.Do(ctx, http.MethodGet, "/v1/templates", nil, nil, &all); err != nil {
		return nil, err
	}
	for _, t := range all.Templates {
		if t.Name == name && t.Error != "" {
			return nil, refuse.Cannotf("", "template %s: %s", name, t.Error)
		}
		if n := t.Node; t.Name == name && n != nil {
			return &slurmconf.Template{
				CPUs: vnode.Cores(1000 * n.CPUs), Memory: vnode.Bytes(n.Memory), Scratch: vnode.Bytes(n.Scratch), Functions: n.Functions, Class: n.Class, Networks: n.Networks,
			}, nil
		}
	}
	return nil, nil //nolint:nilnil // none is an answer
}

// slurmVersion returns the release of Slurm that is given, or else installed here.
func slurmVersion(ctx context.Context, given string) (slurmconf.Version, error) {
	if given != "" {
		return slurmconf.ParseVersion(given)
	}
	for _, program := range []string{"slurmctld", "sinfo"} {
		path, err := exec.LookPath(program)
		if err != nil {
			continue
		}
		out, err := fork.Output(exec.CommandContext(ctx, path, "-V"))
		if err != nil {
			return slurmconf.Version{}, fmt.Errorf("ask %s for its version: %w", path, err)
		}
		return slurmconf.ParseVersion(strings.TrimSpace(string(out)))
	}
	return slurmconf.Version{}, refuse.Cannotf("name it: --slurm-version 22.05", "neither slurmctld nor sinfo is installed here, so the version of Slurm is not known")
}
