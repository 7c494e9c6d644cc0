// Package iosync is VNode Sync on a file server: it keeps a group of block I/O for each node of the site that uses a file system of
// this host, with the node's limits, and reports which limits are enforced.
package iosync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"berth/internal/host"
	"berth/internal/host/block"
	"berth/internal/limit/cgroup"
	"berth/internal/site/iosync/place"
	"berth/internal/site/iosync/want"
	"berth/internal/spec/vnode"
	"berth/internal/sys/file"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/layout"
	"berth/internal/sys/proof"
)

// Wish has the limits that one node of the site asks for on one file system of this server.
type Wish struct {
	Node      string       `json:"node"`
	Host      string       `json:"host"` // that it runs on
	Addresses []netip.Addr `json:"addresses"`
	Strays    []string     `json:"strays,omitempty"` // how its requests can come from an address that is not among these: they are not held
	Class     vnode.Class  `json:"class,omitempty"`
	Want      want.Entry   `json:"want"`
	Servers   int          `json:"servers"`           // of the file system in the site; 0 counts as 1
	Bounded   bool         `json:"bounded,omitempty"` // the capacity of one of them is known
}

// Held has the limits of a node on a file server: those that were asked for, and those that are enforced.
type Held struct {
	Wish
	Filesystem string        `json:"filesystem"`
	Way        string        `json:"way"`
	Limits     []proof.Limit `json:"limits,omitempty"`       // as the kernel has them now
	Missing    string        `json:"not_enforced,omitempty"` // the requests that the limits do not hold
	Failed     string        `json:"failed,omitempty"`       // why some of it could not be enforced; it is tried again
	Stale      string        `json:"stale,omitempty"`        // why the site may want something else meanwhile
	Away       bool          `json:"host_away,omitempty"`    // the agent of its host is not heard of; what is enforced stays
	Since      time.Time     `json:"since"`
}

// kept is the record of the limits that are enforced for a node.
type kept struct {
	Held
	Written []*cgroup.Limit `json:"written,omitempty"`
	Frames  uint16          `json:"frames,omitempty"` // way network: of its frames
	Part    want.Entry      `json:"part"`             // of the entry, that this server enforces

	Unweighed bool `json:"unweighed,omitempty"` // its weight could not be set; it is tried again

	Instance *instance `json:"instance,omitempty"` // way instances: the node's own server
}

// Served is one file system of this host, with the groups of its nodes.
type Served struct {
	conf want.Filesystem
	at   *place.FS
	way  way
	log  *slog.Logger
	held map[string]*kept // by node
	dir  string           // of the records that Show reads

	split    split
	weights  map[string]int // of nodes, where one has a class
	followed bool           // once: nodes that come later are new in the site
	before   []string       // nodes that an agent before left records of, until they are dropped
}

// Serve begins to serve a file system, or takes over what a killed agent left. open opens the gate for way gate; wake is called when
// Follow should be called.
func Serve(ctx context.Context, l layout.Layout, conf want.Filesystem, open OpenGate, log *slog.Logger, wake func()) (*Served, error) {
	facts, err := host.ReadFacts()
	if err != nil {
		return nil, err
	}
	at, err := place.Open(ctx, l, facts.Cgroups, conf.Name, conf.Path)
	if err != nil {
		return nil, err
	}
	s := &Served{
		conf: conf, at: at, log: log.With("filesystem", conf.Name), held: map[string]*kept{}, dir: records(l, conf.Name),
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, err
	}
	before, err := recorded(s.dir)
	if err != nil {
		s.log.Warn("what was enforced before is not known: nodes get floors until they are told more", "err", err)
	}
	for _, h := range before {
		s.before = append(s.before, h.Node)
		if conf.WayOf() == want.Network && h.Written != nil { // its way was another one: groups begin without limits
			if _, err := at.Remove(h.Node); err != nil {
				return nil, err
			}
		}
	}
	if err := unsteer(l, conf.Name, &conf, func() (*place.FS, error) { return at, nil }); err != nil {
		return nil, fmt.Errorf("end the instances of the entry before: %w", err)
	}
	dir, loans := place.Dir(l, conf.Name), block.Loans(l.DiskLoans())
	switch conf.WayOf() {
	case want.Network:
		s.way, err = newFrames(conf, dir, before)
	case want.Gate:
		s.way, err = newGated(conf, at, facts.Cgroups, loans, dir, before, open, wake, s.log)
	default:
		var g *groups
		g, err = newGroups(conf, at, facts.Cgroups, loans)
		if s.way = g; err == nil && conf.WayOf() == want.Instances {
			s.way, err = newSteered(l, g, before, s.log, wake)
		}
	}
	if err != nil {
		return nil, err
	}
	s.split.resume(before, time.Now())
	return s, nil
}

// Close ends the service; the limits stay.
func (s *Served) Close() { s.way.close() }

// Follow makes the server enforce the limits that the site asks for now. If some of them could not be set, it returns an error;
// the others are set, and the next call tries again.
func (s *Served) Follow(ctx context.Context, all []Wish) error {
	var failed []error
	wanted, addresses, split := map[string]bool{}, map[netip.Addr]string{}, s.Splits()
	s.weights = weigh(all)
	for _, w := range all {
		wanted[w.Node] = true
		made, err := s.at.Make(w.Node) // before its address is told
		if err != nil {
			failed = append(failed, err)
			continue
		}
		if made {
			delete(s.held, w.Node) // another program removed its group, and the limits with it
		}
		if !s.followed {
			s.split.arrived(w)
		}
		if err := s.hold(ctx, w); err != nil {
			failed = append(failed, fmt.Errorf("node %s: %w", w.Node, err))
		}
		for _, a := range w.Addresses {
			addresses[a] = w.Node
		}
	}
	failed = append(failed, s.at.Tell(addresses), s.way.followed(addresses, errors.Join(failed...) == nil))
	if !split { // the site was not asked until now
		s.split.at = time.Now()
	}
	s.followed = true
	there, err := s.at.Nodes()
	there = append(there, s.before...) // of which a killed agent removed the group, perhaps, and not the record
	slices.Sort(there)
	gone := slices.DeleteFunc(slices.Compact(there), func(n string) bool { return wanted[n] })
	return errors.Join(append(failed, err, s.drop(gone))...)
}

// hold gives a node's group its limits.
func (s *Served) hold(ctx context.Context, w Wish) error {
	was, part := s.held[w.Node], s.split.part(w)
	if weight, ok := s.weights[w.Node]; ok {
		part.Weight = weight
	}
	if was != nil && was.Failed == "" && !was.Unweighed && reflect.DeepEqual(was.Wish, w) && was.Part == part && s.way.stands(w.Node) {
		return nil
	}
	h := &kept{Held: Held{Wish: w, Filesystem: s.conf.Name, Way: s.conf.WayOf(), Missing: s.way.missing(part), Since: time.Now().UTC()}, Part: part}
	if was != nil {
		h.Since = was.Since
	}
	err := s.way.hold(ctx, h, was)
	if err != nil {
		h.Failed = err.Error()
	}
	s.held[w.Node] = h
	return errors.Join(err, s.record(h))
}

// drop removes the limits of nodes that the site does not have any more.
func (s *Served) drop(nodes []string) error {
	nodes, err := s.way.free(nodes)
	left, more := s.at.Remove(nodes...)
	failed := []error{err, more}
	for _, n := range nodes {
		if slices.Contains(left, n) {
			continue
		}
		failed = append(failed, s.way.drop(n))
		delete(s.held, n)
		s.split.forget(n)
		if err := os.Remove(filepath.Join(s.dir, n+".json")); err != nil && !errors.Is(err, os.ErrNotExist) {
			failed = append(failed, err)
			continue
		}
		s.before = slices.DeleteFunc(s.before, func(b string) bool { return b == n })
	}
	return errors.Join(failed...)
}

// records is the folder with a record for each node, which Show reads.
func records(l layout.Layout, filesystem string) string {
	return filepath.Join(place.Dir(l, filesystem), "nodes")
}

func (s *Served) record(h *kept) error {
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return file.WriteForBoot(filepath.Join(s.dir, h.Node+".json"), append(text, '\n'), 0o644)
}

// recorded reads the records of a file system, sorted by node.
func recorded(dir string) (all []*kept, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	for _, f := range files {
		data, err := os.ReadFile(f)
		if errors.Is(err, os.ErrNotExist) {
			continue // removed meanwhile
		}
		h := &kept{}
		if err == nil {
			err = jsonfile.File{Path: f, Is: "what is held for a node", Remedy: "berthd writes it anew when it starts"}.Decode(data, h)
		}
		if err != nil {
			return all, err
		}
		all = append(all, h)
	}
	return all, nil
}

// Show returns the limits that this host enforces, by file system and node. File systems that cannot be served come first, without a node.
func Show(l layout.Layout) ([]Held, error) {
	names, err := place.Known(l)
	if err != nil {
		return nil, err
	}
	all, err := showUnserved(l)
	if err != nil {
		return nil, err
	}
	for _, fs := range names {
		nodes, err := recorded(records(l, fs))
		if err != nil {
			return nil, fmt.Errorf("read what is held on %s: %w", fs, err)
		}
		wrong, looked, frames := "", false, framed{}
		for _, h := range nodes {
			if h.Way == want.Network {
				if !looked {
					frames, err = readFrames(place.Dir(l, fs))
					wrong, looked = frames.wrong, true
				}
				h.Limits = frames.limits(h)
			} else {
				h.Limits, err = cgroup.Read(h.Written)
			}
			if err == nil && h.Way == want.Preload && !looked {
				wrong, err = loaded(place.Dir(l, fs))
				looked = true
			}
			if err == nil && h.Way == want.Gate && !looked {
				wrong, err = gateWrong(place.Dir(l, fs))
				looked = true
			}
			if err != nil {
				return nil, fmt.Errorf("read what is held on %s: %w", fs, err)
			}
			if h.Way == want.Instances && !looked {
				wrong, looked = pinsOf(l, fs).Wrong(), true
			}
			if h.Instance != nil && !h.Instance.Alive() { // no agent runs that would say so
				h.Failed = "its instance ended: its connections are refused"
			}
			h.Missing = strings.Join(slices.DeleteFunc([]string{wrong, h.Missing}, func(s string) bool { return s == "" }), "; ")
			all = append(all, h.Held)
		}
	}
	return all, nil
}

// Sweep removes the leftovers of file systems that this host does not serve any more.
func Sweep(l layout.Layout, served []want.Filesystem, log *slog.Logger) error {
	names, err := place.Known(l)
	if err != nil {
		return err
	}
	failed := []error{sweepUnserved(l, served)}
	for _, n := range names { // all of them before any is served: an interface may be another one's now
		i := slices.IndexFunc(served, func(f want.Filesystem) bool { return f.Name == n })
		name, index, err := interfaceOf(place.Dir(l, n))
		if err == nil && index > 0 && (i < 0 || served[i].Interface != name) {
			err = unframe(place.Dir(l, n))
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("take the limits of file system %s off its interface: %w", n, err))
			continue
		}
		reopen := func() (*place.FS, error) {
			facts, err := host.ReadFacts()
			if err != nil {
				return nil, err
			}
			return place.Reopen(l, facts.Cgroups, n)
		}
		if i >= 0 {
			continue // Serve looks what it goes on with
		}
		if err := unsteer(l, n, nil, reopen); err != nil {
			failed = append(failed, fmt.Errorf("end the instances of file system %s: %w", n, err))
			continue
		}
		f, err := reopen()
		if err == nil {
			err = f.Close()
		}
		log.Info("file system is not served any more", "filesystem", n, "err", err)
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}
