// Package top samples the resource use of the running nodes, the protected services and the host.
package top

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/internal/host"
	"berth/internal/host/counters"
	"berth/internal/network/shape"
	"berth/internal/node"
	"berth/internal/node/plan"
	"berth/internal/node/protect"
	"berth/internal/spec/vnode"
	"berth/internal/sys/step"
)

// Sampler samples the resource use of the running nodes: each file of a node's is read once a sample, and no process is
// started.
type Sampler struct {
	nodes     *node.Berth
	protected *protect.Services
	only      []string // the nodes that are asked for; none: all
	boot      string
	last      map[string]reading // by kind and name, of the sample before
	host      hostReading
	specs     map[string]started
}

// reading has the counters of one node at one moment.
type reading struct {
	at    time.Time
	pid   int
	start uint64 // of process 1: a node that was started anew counts from 0 again
	counters.Counters
	links []shape.Count
}

// hostReading has the counters of the host at one moment.
type hostReading struct {
	at   time.Time
	busy time.Duration
	counters.Pressure
}

// started is the part of a node's spec that can change with a start only, as it was at the last start.
type started struct {
	start uint64
	class vnode.Class
	group string
}

// New returns a sampler of the nodes and protected services named, or of all. It refuses names that are neither's.
func New(ctx context.Context, nodes *node.Berth, services *protect.Services, names []string) (*Sampler, error) {
	protected, err := services.All(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		if slices.ContainsFunc(protected, func(p protect.Service) bool { return p.Name == n }) {
			continue
		}
		if _, err := nodes.Spec(n); err != nil {
			return nil, err
		}
	}
	boot, err := step.BootID()
	if err != nil {
		return nil, fmt.Errorf("read the boot id: %w", err)
	}
	return &Sampler{nodes: nodes, protected: services, only: names, boot: boot, last: map[string]reading{}, specs: map[string]started{}}, nil
}

// Sample reads the counters of the nodes that run now. Rates are those since the sample before; for what was not in that one,
// they are not known.
func (s *Sampler) Sample(ctx context.Context) (*Sample, error) {
	cg, err := host.ReadCgroups("/proc")
	if err != nil {
		return nil, err
	}
	m := counters.NewMeter(cg, anyBFQ())
	now := &Sample{Time: time.Now(), Nodes: []Use{}}
	if !s.host.at.IsZero() {
		now.Interval = now.Time.Sub(s.host.at)
	}
	now.Host = s.useOfHost(m, now.Time)
	subjects, err := s.subjects(ctx)
	if err != nil {
		return nil, err
	}
	seen := make(map[string]reading, len(subjects))
	names := diskNames{}
	for _, sub := range subjects {
		r, ok := sub.read(m)
		if !ok && sub.kind == KindNode {
			continue // it ended meanwhile
		}
		key := sub.kind + " " + sub.name
		was, known := s.last[key]
		u := Use{Name: sub.name, Kind: sub.kind, Class: string(sub.class)}
		u.levels(r)
		if known && was.pid == r.pid && was.start == r.start {
			u.rates(was, r, names)
		}
		seen[key] = r
		now.Nodes = append(now.Nodes, u)
	}
	s.last = seen
	return now, nil
}

// subject is a node that is sampled, or a service of the host that is protected.
type subject struct {
	name, kind string
	class      vnode.Class
	group      string
	pid        int // a process in its network namespace; 0: it has none of its own
	start      uint64
}

func (s *Sampler) subjects(ctx context.Context) ([]subject, error) {
	names := s.only
	if len(names) == 0 {
		entries, err := os.ReadDir(s.nodes.Layout.RunNodes())
		if err != nil && !os.IsNotExist(err) {
			return nil, fmt.Errorf("list nodes: %w", err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	var all []subject
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		st := s.nodes.Status(name, s.boot)
		if !st.Runs() {
			continue
		}
		spec := s.spec(&st)
		all = append(all, subject{name: name, kind: KindNode, class: spec.class, group: spec.group, pid: st.PID, start: st.Start})
	}
	services, err := s.services(ctx)
	return append(all, services...), err
}

// services are those that are protected. They are in the host's network: what they carry is not told apart there.
func (s *Sampler) services(ctx context.Context) ([]subject, error) {
	protected, err := s.protected.All(ctx)
	if err != nil {
		return nil, err
	}
	var all []subject
	for _, p := range protected {
		if p.Gone || p.Cgroup == "" || len(s.only) > 0 && !slices.Contains(s.only, p.Name) {
			continue
		}
		all = append(all, subject{name: p.Name, kind: KindService, class: p.Class, group: p.Cgroup})
	}
	return all, nil
}

func (s *Sampler) spec(st *node.Status) started {
	spec, ok := s.specs[st.Name]
	if !ok || spec.start != st.Start {
		n := &vnode.Node{Name: st.Name}
		if spec, err := s.nodes.Spec(st.Name); err == nil {
			n = spec
		}
		spec = started{start: st.Start, class: n.Class, group: plan.GroupPath(s.nodes.Layout, n)}
		s.specs[st.Name] = spec
	}
	return spec
}

func (sub *subject) read(m *counters.Meter) (reading, bool) {
	r := reading{at: time.Now(), pid: sub.pid, start: sub.start}
	var ok bool
	if r.Counters, ok = m.Read(sub.group); !ok {
		return r, false
	}
	if sub.pid != 0 {
		r.links, _ = shape.Counts(sub.pid) // it may have ended: its network is not known then
	}
	return r, true
}

// useOfHost reads what the whole host uses.
func (s *Sampler) useOfHost(m *counters.Meter, at time.Time) HostUse {
	h := host.New().Use()
	now := hostReading{at: at, busy: h.Busy, Pressure: m.HostPressure("/proc/pressure")}
	was := s.host
	s.host = now
	u := HostUse{CPUs: h.CPUs, Memory: int64(h.Memory), MemoryTotal: int64(h.MemoryTotal)}
	if was.at.IsZero() {
		return u
	}
	past := now.at.Sub(was.at)
	u.CPU = percent(was.busy, now.busy, past)
	u.Pressure = pressureUse(was.Pressure, now.Pressure, past)
	return u
}

// anyBFQ reports whether some disk of the host is scheduled by BFQ now.
func anyBFQ() bool {
	files, _ := filepath.Glob("/sys/block/*/queue/scheduler") // the pattern is constant
	return slices.ContainsFunc(files, func(f string) bool {
		text, err := os.ReadFile(f)
		return err == nil && strings.Contains(string(text), "[bfq]")
	})
}

// diskNames are the names of disks by their numbers, found for one sample: numbers are given out anew.
type diskNames map[[2]uint32]string

func (d diskNames) of(major, minor uint32) string {
	key := [2]uint32{major, minor}
	name, ok := d[key]
	if !ok {
		name = fmt.Sprintf("%d:%d", major, minor)
		if to, err := os.Readlink("/sys/dev/block/" + name); err == nil {
			name = filepath.Base(to)
		}
		d[key] = name
	}
	return name
}
