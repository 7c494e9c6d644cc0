package slurmconf

import (
	"fmt"
	"slices"
	"strings"

	"berth/internal/site/slurm/settings"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// Facts are the facts that the agent of a host told. The zero value is a host that was not asked.
type Facts struct {
	Missing string // why its agent told nothing; "" if it did

	CPUs   int
	Memory vnode.Bytes
	Slots  int // 0: its agent's file has no bound
	Rack   string

	Template *Template // the template of the host's group; nil: there is none of this name, or the agent is too old to tell
}

// Template has the limits of a template's nodes. Zero values are not set in the template.
type Template struct {
	CPUs      vnode.Cores // cpu.max
	Memory    vnode.Bytes // memory.max
	Scratch   vnode.Bytes // of all its volumes
	Functions int
	Class     string
	Networks  []string // modes of its interfaces
}

// Note is a note for the reader of the files.
type Note struct {
	Host string `json:"host,omitempty"`
	Text string `json:"text"`
}

// slots is the nodes of one host, which are all alike.
type slots struct {
	host      string
	group     *settings.Group
	count     int
	cpus      int
	memory    int // MiB
	scratch   int // MiB
	functions int
	features  []string
}

// The size that is assumed for a node where nothing says it: CPUs, and bytes of memory.
const (
	takenCPUs   = 1
	takenMemory = 1 << 30
)

// sizes works out the size of a host's nodes: by the settings, else by its template, else as a part of the host.
func sizes(g *settings.Group, host string, f Facts) (*slots, []Note, error) {
	var notes []Note
	note := func(format string, a ...any) {
		notes = append(notes, Note{Host: host, Text: fmt.Sprintf(format, a...)})
	}
	t := f.Template
	if t == nil {
		t = &Template{}
		if f.Missing == "" {
			note("it has no template %s: classes, networks and sizes of its nodes are not known", g.Template)
		}
	}
	s := &slots{host: host, group: g, count: g.Slots}
	if s.count == 0 {
		s.count = f.Slots
	}
	if s.count == 0 {
		why := "slots is neither in the settings nor in its agent's file"
		if f.Missing != "" {
			why = "slots is not in the settings, and its agent was not heard: " + f.Missing
		}
		return nil, nil, refuse.Cannotf("write slots: N into slurm.yaml, or into berthd.yaml of the host", "nobody says how many nodes host %s takes: %s", host, why)
	}

	switch {
	case g.CPUs > 0:
		s.cpus = g.CPUs
	case t.CPUs > 0:
		s.cpus = max(1, int(t.CPUs/1000))
	case f.CPUs > 0:
		s.cpus = max(1, f.CPUs/s.count)
	default:
		s.cpus = takenCPUs
		note("nobody says how many CPUs its nodes have: %d was taken", takenCPUs)
	}
	memory := g.Memory
	switch {
	case memory > 0:
	case t.Memory > 0:
		memory = t.Memory
	case f.Memory > 0:
		memory = f.Memory / 10 * 9 / vnode.Bytes(s.count)
	default:
		memory = takenMemory
		note("nobody says how much memory its nodes have: %s was taken", vnode.Bytes(takenMemory))
	}
	if all := memory * vnode.Bytes(s.count); f.Memory > 0 && all > f.Memory {
		note("%d nodes with %s are more than its memory of %s", s.count, memory, f.Memory)
	}
	s.memory = max(1, mebibytes(memory))
	s.scratch = mebibytes(max(g.Scratch, 0))
	if g.Scratch == 0 {
		s.scratch = mebibytes(t.Scratch)
	}
	s.functions = g.Functions
	if g.Functions == 0 {
		s.functions = t.Functions
	}
	s.features = features(g, host, f.Rack, t, f.Template != nil, note)
	return s, notes, nil
}

func mebibytes(b vnode.Bytes) int { return int(b >> 20) }

// features lists what jobs may ask for, each once.
func features(g *settings.Group, host, rack string, t *Template, known bool, note func(string, ...any)) (all []string) {
	class := t.Class
	if class == "" && known {
		class = "normal"
	}
	for _, word := range slices.Concat([]string{host, rack, g.Name, g.Template, class}, t.Networks, g.Features) {
		switch {
		case word == "" || slices.Contains(all, word):
		case !settings.IsWord(word):
			note("%q cannot be a feature: Slurm takes letters, digits, '_', '-' and dots", word)
		default:
			all = append(all, word)
		}
	}
	return all
}

// names writes the names of a host's nodes as Slurm does: st01-[01-20].
func (s *slots) names() string {
	prefix := settings.Prefix(s.host)
	if s.count == 1 {
		return settings.NodeName(s.host, 1)
	}
	var ranges []string
	for first, last := 1, 99; first <= s.count; first, last = last+1, last*10+9 { // a range has numbers of one length
		ranges = append(ranges, oneRange(first, min(last, s.count)))
	}
	return prefix + "-[" + strings.Join(ranges, ",") + "]"
}

func oneRange(first, last int) string {
	if first == last {
		return fmt.Sprintf("%02d", first)
	}
	return fmt.Sprintf("%02d-%02d", first, last)
}

// gres writes the generic resources of a node; "" if it has none.
func (s *slots) gres() string {
	var all []string
	if s.scratch > 0 {
		all = append(all, fmt.Sprintf("%s:%dM", gresScratch, s.scratch))
	}
	if s.functions > 0 {
		all = append(all, fmt.Sprintf("%s:%d", gresFunction, s.functions))
	}
	return strings.Join(all, ",")
}

// Names of the generic resources.
const (
	gresScratch  = "scratch"
	gresFunction = "vf"
)
