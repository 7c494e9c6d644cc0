package metrics

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/host/counters"
	"berth/internal/network/sriov"
	"berth/internal/node"
	"berth/internal/node/top"
	"berth/internal/site/store"
)

// patience is how long reading may take: a scrape waits 10 s by default.
const patience = 8 * time.Second

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("berth_"+name, help, labels, nil)
}

// The metrics. Counters are the kernel's and go back to 0 when a node is started anew.
var (
	success    = desc("collector_success", "Whether a part of the metrics could be read: 1, or 0.", "part")
	nodes      = desc("nodes", "Nodes of this host.", "state")
	leftOut    = desc("nodes_left_out", "Nodes that run, are restarted or have failed, and have no metrics of their own, because there are too many.")
	keeperUp   = desc("keeper_up", "Whether the keeper runs, which watches the nodes. It ends with the last node.")
	functions  = desc("functions", "Virtual functions of an adapter.", "adapter", "state")
	mounted    = desc("gateway_mounts", "Mounts of running nodes by gateway.", "gateway")
	storeUp    = desc("store_reachable", "Whether the site's store answers.")
	storeAway  = desc("store_away_seconds", "For how long the site's store has not answered.")
	storeBytes = desc("store_size_bytes", "Size of the site's store, where it is known.")

	began     = desc("node_start_time_seconds", "When a node was started last, in seconds since 1970.", "node")
	failed    = desc("node_failed", "Whether a node has ended by itself with a failure, or its restart fails.", "node")
	healthy   = desc("node_healthy", "Whether the health check of a node succeeds.", "node")
	restarts  = desc("node_restarts_total", "How often the restart policy has started a node.", "node")
	troubled  = desc("node_trouble", "What is wrong with a node's connections: how many things.", "node")
	asked     = desc("node_limit_asked", "A limit as the spec asks for it, in the unit of its key: bytes, bytes or requests a second, bits a second, CPUs. +Inf: no limit.", "node", "limit")
	achieved  = desc("node_limit_achieved", "The same limit as it was read back from the kernel.", "node", "limit")
	holds     = desc("node_limit_holds", "Whether the kernel has the limit that was asked for, apart from its rounding. What a class brings and this host lacks has none.", "node", "limit")
	cpu       = desc("node_cpu_seconds_total", "CPU time used.", "node", "kind", "class")
	throttled = desc("node_cpu_throttled_seconds_total", "Time that cpu.max kept a node from running, summed over CPUs.", "node", "kind", "class")
	memory    = desc("node_memory_bytes", "Memory used.", "node", "kind", "class")
	memoryMax = desc("node_memory_max_bytes", "Limit of memory.", "node", "kind", "class")
	oomKills  = desc("node_oom_kills_total", "Processes killed for lack of memory.", "node", "kind", "class")
	processes = desc("node_processes", "Processes and threads.", "node", "kind", "class")
	waited    = desc("node_pressure_waiting_seconds_total", "Time that at least one task waited for a resource (PSI some).", "node", "kind", "class", "resource")
	stalled   = desc("node_pressure_stalled_seconds_total", "Time that all tasks that were not idle waited for a resource (PSI full).", "node", "kind", "class", "resource")
	readBytes = desc("node_disk_read_bytes_total", "Bytes read from a disk.", "node", "kind", "class", "disk")
	wrote     = desc("node_disk_written_bytes_total", "Bytes written to a disk.", "node", "kind", "class", "disk")
	reads     = desc("node_disk_reads_completed_total", "Reads of a disk.", "node", "kind", "class", "disk")
	writes    = desc("node_disk_writes_completed_total", "Writes to a disk.", "node", "kind", "class", "disk")
	received  = desc("node_network_receive_bytes_total", "Bytes that an interface received.", "node", "kind", "class", "interface")
	sent      = desc("node_network_transmit_bytes_total", "Bytes that an interface sent.", "node", "kind", "class", "interface")
)

// collector reads the sources at each scrape.
type collector struct{ Sources }

// Describe sends nothing: which metrics there are depends on the host.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads all parts. A part that fails leaves the others as they are.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	t := told{to}
	for _, part := range []struct {
		name string
		read func(context.Context, told) error
	}{{"nodes", c.nodes}, {"functions", c.functions}, {"store", c.store}} {
		err := part.read(ctx, t)
		if err != nil {
			c.Log.Warn("metrics are left out", slog.String("part", part.name), slog.Any("err", err))
		}
		t.gauge(success, truth(err == nil), part.name)
	}
}

// nodes tells of the nodes, and of each of those that run, are restarted or have failed, up to Most.
func (c *collector) nodes(ctx context.Context, t told) error {
	all, err := c.Nodes.Nodes.List(ctx)
	if err != nil {
		return err
	}
	states := map[string]int{node.Running: 0, node.Paused: 0, node.Stopped: 0, node.Exited: 0}
	of := map[string]bool{}
	shown, out := 0, 0
	for i := range all {
		s := &all[i]
		states[s.State]++
		if !s.Runs() && !s.Restarting && !dead(s) {
			continue // there is nothing to watch
		}
		if shown == c.Most {
			out++
			continue
		}
		shown++
		t.life(s)
		t.gauge(failed, truth(dead(s)), s.Name)
		if !s.Runs() {
			continue
		}
		of[s.Name] = true
		if well, known := s.Health.Says(); known {
			t.gauge(healthy, truth(well), s.Name)
		}
		t.gauge(troubled, float64(len(s.Trouble)), s.Name)
	}
	for state, n := range states {
		t.gauge(nodes, float64(n), state)
	}
	t.gauge(leftOut, float64(out))
	t.gauge(keeperUp, truth(c.Nodes.KeeperRuns()))
	gateways, once := map[string]int{}, c.Nodes.Once(ctx)
	for name := range of {
		if err := ctx.Err(); err != nil {
			return err
		}
		spec, err := c.Nodes.Spec(name)
		if err != nil {
			continue // it was removed meanwhile
		}
		for _, m := range spec.Mounts {
			gateways[m.Gateway]++
		}
		if d, err := c.Nodes.Show(once, name); err == nil {
			t.limits(name, d.Limits)
		}
	}
	for gateway, n := range gateways {
		t.gauge(mounted, float64(n), gateway)
	}
	return c.counted(ctx, t, of)
}

// counted sends the kernel's counters.
func (c *collector) counted(ctx context.Context, t told, of map[string]bool) error {
	sampler, err := top.New(ctx, c.Nodes, c.Services, nil)
	if err != nil {
		return err
	}
	all, err := sampler.Counts(ctx, func(name string) bool { return of[name] })
	if err != nil {
		return err
	}
	disk := top.DiskNames()
	for _, n := range all {
		who := []string{n.Name, n.Kind, n.Class}
		t.seconds(cpu, n.CPU, who...)
		t.seconds(throttled, n.Throttled, who...)
		t.known(memory, prometheus.GaugeValue, n.Memory, who...)
		t.known(memoryMax, prometheus.GaugeValue, n.MemoryMax, who...)
		t.known(oomKills, prometheus.CounterValue, n.OOMKills, who...)
		t.known(processes, prometheus.GaugeValue, n.PIDs, who...)
		for resource, stall := range map[string]counters.Stall{"cpu": n.Pressure.CPU, "memory": n.Pressure.Memory, "io": n.Pressure.IO} {
			t.seconds(waited, stall.Some, with(who, resource)...)
			t.seconds(stalled, stall.Full, with(who, resource)...)
		}
		for _, d := range n.Disks {
			at := with(who, disk(d.Major, d.Minor))
			t.counter(readBytes, float64(d.ReadBytes), at...)
			t.counter(wrote, float64(d.WriteBytes), at...)
			t.counter(reads, float64(d.ReadOps), at...)
			t.counter(writes, float64(d.WriteOps), at...)
		}
		for _, l := range n.Links {
			t.counter(received, float64(l.RXBytes), with(who, l.Name)...)
			t.counter(sent, float64(l.TXBytes), with(who, l.Name)...)
		}
	}
	return nil
}

func with(labels []string, more string) []string {
	return append(slices.Clip(labels), more)
}

// functions tells how many virtual functions nodes have.
func (c *collector) functions(_ context.Context, t told) error {
	all, err := sriov.OnHost(c.Nodes.Layout).VFs()
	if err != nil {
		return err
	}
	for _, pf := range all {
		used := 0
		for _, vf := range pf.VFs {
			if vf.Owner != "" {
				used++
			}
		}
		t.gauge(functions, float64(used), pf.Name, "used")
		t.gauge(functions, float64(len(pf.VFs)-used), pf.Name, "free")
	}
	return nil
}

// store tells of the site's store.
func (c *collector) store(ctx context.Context, t told) error {
	if c.Store == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s, err := c.Store.Status(ctx)
	if err != nil {
		s = store.Status{Since: time.Now()}
	}
	away := 0.0
	if !s.Reachable && !s.Since.IsZero() {
		away = time.Since(s.Since).Seconds()
	}
	t.gauge(storeUp, truth(s.Reachable))
	t.gauge(storeAway, away)
	if s.Size > 0 {
		t.gauge(storeBytes, float64(s.Size))
	}
	return nil
}
