package iosync

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"berth/internal/site/intercept/network"
	"berth/internal/site/iosync/allot"
	"berth/internal/site/iosync/want"
	"berth/internal/spec/vnode"
	"berth/internal/sys/proof"
	"berth/internal/sys/refuse"
)

// frames is the way network: the frames between a node and the server are limited, on the server's interface.
type frames struct {
	name    string // of the interface
	link    *network.Link
	classes map[string]uint16 // by node
}

// interfaceFile names, in the folder of a file system, the interface that is to be cleaned when the file system is not served any more:
// "NAME INDEX".
const interfaceFile = "interface"

// interfaceOf reads which interface has the limits of a file system; index is 0 if none has.
func interfaceOf(dir string) (name string, index int, err error) {
	text, err := os.ReadFile(filepath.Join(dir, interfaceFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", 0, nil
	}
	if err == nil {
		_, err = fmt.Sscan(string(text), &name, &index)
	}
	return name, index, err
}

func newFrames(f want.Filesystem, dir string, before []*kept) (*frames, error) {
	index, err := network.Index(f.Interface)
	if err != nil {
		return nil, fmt.Errorf("file system %s: %w", f.Name, err)
	}
	if _, was, err := interfaceOf(dir); err != nil || was != index {
		if err := errors.Join(err, unframe(dir)); err != nil { // it was made anew
			return nil, err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, interfaceFile), fmt.Appendln(nil, f.Interface, index), 0o644); err != nil { // before anything is made there
		return nil, err
	}
	link, err := network.Open(f.Interface)
	if err != nil {
		return nil, fmt.Errorf("file system %s: %w", f.Name, err)
	}
	w := &frames{f.Interface, link, map[string]uint16{}}
	for _, h := range before {
		if h.Frames > 0 {
			w.classes[h.Node] = h.Frames
		}
	}
	return w, nil
}

// unframe takes the limits of a file system off its interface.
func unframe(dir string) error {
	_, index, err := interfaceOf(dir)
	if err != nil || index == 0 {
		return err
	}
	if err := network.Remove(index); err != nil {
		return err
	}
	return os.Remove(filepath.Join(dir, interfaceFile))
}

// class returns the number of a node's class: its own, or the first free one.
func (w *frames) class(node string) (uint16, error) {
	if c := w.classes[node]; c > 0 {
		return c, nil
	}
	taken := map[uint16]bool{}
	for _, c := range w.classes {
		taken[c] = true
	}
	for c := uint16(1); c < 0xffff; c++ {
		if !taken[c] {
			w.classes[node] = c
			return c, nil
		}
	}
	return 0, fmt.Errorf("interface %s has %d nodes: HTB has no more classes", w.name, len(w.classes))
}

func (w *frames) hold(_ context.Context, h, _ *kept) (err error) {
	if h.Frames, err = w.class(h.Node); err != nil {
		return err
	}
	return w.link.Hold(h.Frames, h.Addresses, network.Rates{Read: uint64(h.Part.Read.Rate), Write: uint64(h.Part.Write.Rate)})
}

// ErrAnew is the error of Follow when the file system must be served anew.
var ErrAnew = errors.New("its limits are set anew")

func (w *frames) followed(_ map[netip.Addr]string, whole bool) error {
	lacks, err := w.link.Lacks()
	if err != nil {
		return err
	}
	if lacks != "" {
		return fmt.Errorf("interface %s: %s: %w", w.name, lacks, ErrAnew)
	}
	if !whole {
		return nil // the programs of the agent before go on, if they did
	}
	return w.link.Follow()
}

// WatchInterfaces calls changed when an interface of a file system changes, until ctx ends.
func WatchInterfaces(ctx context.Context, all []want.Filesystem, changed func()) error {
	var names []string
	for _, f := range all {
		if f.Interface != "" {
			names = append(names, f.Interface)
		}
	}
	if names == nil {
		return nil
	}
	return network.Watch(ctx, names, changed)
}

func (w *frames) stands(string) bool { return true }

func (w *frames) free(nodes []string) ([]string, error) { return nodes, nil }

func (w *frames) close() { _ = w.link.Close() } // of a table that programs go on with, or that is gone

func (w *frames) drop(node string) error {
	c := w.classes[node]
	if c == 0 {
		return nil
	}
	delete(w.classes, node)
	return w.link.Drop(c)
}

func (w *frames) missing(e want.Entry) string {
	no := "frames are limited, not the disk: what the server does on its own for a node is not held"
	if e.Weight > 0 || e.Read.IOPS > 0 || e.Write.IOPS > 0 {
		no += "; weight, class and iops are not enforced"
	}
	return no
}

func (w *frames) counted() func(node string) (sum allot.Rates, ok bool) {
	all, _, err := network.Read(w.name)
	return func(node string) (sum allot.Rates, ok bool) {
		c, ok := all[w.classes[node]]
		sum[allot.ReadBytes], sum[allot.WriteBytes] = float64(c.Passed.Read), float64(c.Passed.Write)
		return sum, ok && err == nil
	}
}

// framed has the kernel's limits for the nodes of one file system.
type framed struct {
	name  string // of the interface
	all   map[uint16]network.Held
	wrong string // what is missing, so that the limits do not hold
}

// readFrames reads it, once for all nodes.
func readFrames(dir string) (f framed, err error) {
	if f.name, _, err = interfaceOf(dir); err != nil {
		return f, err
	}
	if f.name == "" {
		f.wrong = "no interface has limits of this file system"
		return f, nil
	}
	f.all, f.wrong, err = network.Read(f.name)
	if refuse.KindOf(err) == refuse.NotFound {
		f.wrong, err = err.Error(), nil
	}
	return f, err
}

// limits are those of a node.
func (f framed) limits(h *kept) (limits []proof.Limit) {
	is := f.all[h.Frames]
	for _, one := range []struct {
		key   string
		asked vnode.Rate
		is    uint64
	}{{"read", h.Part.Read.Rate, is.Read}, {"write", h.Part.Write.Rate, is.Write}} {
		if one.asked == 0 {
			continue
		}
		l := proof.Limit{Key: "io." + h.Filesystem + "." + one.key + ".rate", Asked: one.asked.String(), By: "htb on " + f.name}
		if one.is > 0 {
			l.Holds = f.wrong == "" && one.is+1 >= uint64(one.asked) && one.is <= uint64(one.asked)+1 // the kernel has whole bytes of frames
			if l.ReadBack = vnode.Rate(one.is).String(); l.Holds {
				l.ReadBack = l.Asked
			}
		}
		limits = append(limits, l)
	}
	return limits
}
