// Package ids gives each node a range of user and group ids of the host that no other node has, for as long as the node exists.
//
// The claims are symbolic links in one folder, because one call makes a link with its content, exclusively. range-BASE → NODE
// names the node that has a range; node-NODE → BASE finds the node's range. Further ranges of a node are those of NODE+1, NODE+2
// … (no node's name has a '+'). same-NODE+FROM+COUNT → NODE says that a node shares these ids with the host, and with other
// nodes. A process that is killed between two calls leaves links that still name their node.
package ids

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Ranges come from this region. It is above the ids of people and the usual entries of /etc/subuid, and below 2^31, at
// which some programs fail. systemd leaves it to containers (its "Users, Groups, UIDs and GIDs" page).
const (
	First = vnode.FirstOwn
	Last  = vnode.EndOwn - Size // base of the last range
	Size  = vnode.OwnIDs        // ids in a range
	slots = (Last-First)/Size + 1
)

// Range is the ids Base … Base+Size-1 of the host.
type Range struct {
	Base uint32 `json:"base"`
	Size uint32 `json:"size"`
}

func (r Range) String() string { return fmt.Sprintf("%d-%d", r.Base, r.Base+r.Size-1) }

// OfPart returns a range that a node has claimed in the folder dir, the first one for part 0; ok is false if it has none.
func OfPart(dir, node string, part int) (r Range, ok bool, err error) {
	return of(dir, (&Claim{Node: node, Part: part}).owner())
}

func of(dir, node string) (r Range, ok bool, err error) {
	text, err := readLink(nodeLink(dir, node))
	if err != nil || text == "" {
		return Range{}, false, err
	}
	base, ok := parseBase(text)
	if !ok {
		return Range{}, false, fmt.Errorf("read the id range of %s: %q is no range's base", node, text)
	}
	owner, err := readLink(rangeLink(dir, base))
	if err != nil || owner != node {
		return Range{}, false, err
	}
	return Range{Base: base, Size: Size}, true, nil
}

// Nodes returns the nodes that have claimed ids in the folder dir, or have begun to.
func Nodes(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list id ranges: %w", err)
	}
	var nodes []string
	for _, e := range entries {
		name, own := strings.CutPrefix(e.Name(), "node-")
		shared := false
		if !own {
			name, shared = strings.CutPrefix(e.Name(), "same-")
		}
		if own || shared {
			name, _, _ = strings.Cut(name, "+")
			nodes = append(nodes, name)
		}
	}
	return nodes, nil
}

// Kinds returns the step kinds of this package, for reading journals.
func Kinds() step.Kinds {
	return step.Kinds{
		"ids.claim": func() step.Step { return new(Claim) },
		"ids.users": func() step.Step { return new(Users) },
	}
}

// Claim is the step that claims a range for a node. The claim lasts until the node is removed. A node that has a range
// keeps it. Otherwise the search begins at a slot that depends only on dir and name, so that a node that is made again
// mostly gets the same range.
type Claim struct {
	Dir  string `json:"dir"` // layout's IDs
	Node string `json:"node"`
	Part int    `json:"part,omitempty"` // 0: its first range; from 1: a further one, for private extents
	Etc  string `json:"etc,omitempty"`  // where passwd, group, subuid and subgid are; "" is /etc
	Base uint32 `json:"base,omitempty"` // filled in by Do
}

// Kind names the step in journals.
func (c *Claim) Kind() string { return "ids.claim" }

// Key identifies the claim; fields that Do filled in are no part of it.
func (c *Claim) Key() string { return c.owner() }

// owner is the name under which the range is claimed.
func (c *Claim) owner() string {
	if c.Part == 0 {
		return c.Node
	}
	return c.Node + "+" + strconv.Itoa(c.Part)
}

func (c *Claim) String() string {
	if c.Base != 0 {
		return fmt.Sprintf("ids %s of the host for %s", c.Range(), c.Node)
	}
	if c.Part > 0 {
		return fmt.Sprintf("%d more ids of the host for %s, for its private users", Size, c.Node)
	}
	return fmt.Sprintf("%d ids of the host for %s, the same at every start", Size, c.Node)
}

// Range returns the range that Do claimed; its Size is 0 before Do.
func (c *Claim) Range() Range {
	if c.Base == 0 {
		return Range{}
	}
	return Range{Base: c.Base, Size: Size}
}

// Do claims a range and fills in Base. The error is refuse.Cannot if no range is free.
func (c *Claim) Do(ctx context.Context) error {
	if had, ok, err := of(c.Dir, c.owner()); err != nil {
		return err
	} else if ok {
		c.Base = had.Base
		return nil
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of id ranges: %w", err)
	}
	taken, err := hostIDs(c.etc())
	if err != nil {
		return err
	}
	start := first(c.Dir, c.owner())
	for i := range uint32(slots) {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("claim an id range: %w", err)
		}
		base := First + (start+i)%slots*Size
		if taken.overlap(base) {
			continue
		}
		got, err := c.try(base)
		if err != nil {
			return err
		}
		if got {
			c.Base = base
			return nil
		}
	}
	return refuse.Cannotf("remove nodes that are no longer needed, or shorten the ranges in /etc/subuid and /etc/subgid",
		"none of the %d id ranges is free for %s", slots, c.owner())
}

// try claims one range if it is free. It makes the node's link first, so that Undo finds a claim that a kill cut short.
func (c *Claim) try(base uint32) (bool, error) {
	owner, err := readLink(rangeLink(c.Dir, base))
	if err != nil || owner != "" && owner != c.owner() {
		return false, err
	}
	mine := nodeLink(c.Dir, c.owner())
	if err := remove(mine); err != nil {
		return false, err
	}
	if err := os.Symlink(strconv.FormatUint(uint64(base), 10), mine); err != nil {
		return false, fmt.Errorf("note the id range of %s: %w", c.owner(), err)
	}
	fault.Point("ids noted")
	err = os.Symlink(c.owner(), rangeLink(c.Dir, base))
	if errors.Is(err, fs.ErrExist) { // another node was faster, or this one's claim was cut short
		owner, err := readLink(rangeLink(c.Dir, base))
		return owner == c.owner(), err
	}
	if err != nil {
		return false, fmt.Errorf("claim ids from %d for %s: %w", base, c.owner(), err)
	}
	return true, nil
}

// Verify reads the claim back.
func (c *Claim) Verify(context.Context) error {
	r, ok, err := of(c.Dir, c.owner())
	if err != nil {
		return err
	}
	if !ok || r.Base != c.Base {
		return fmt.Errorf("the id range %s of %s is not claimed", c.Range(), c.owner())
	}
	return nil
}

// OnDisk implements step.Lasting.
func (c *Claim) OnDisk() error { return file.SyncDir(c.Dir) }

// Undo gives the node's range back, even if Do did not fill in Base. It leaves other nodes' ranges alone.
func (c *Claim) Undo(context.Context) error {
	text, err := readLink(nodeLink(c.Dir, c.owner()))
	if err != nil {
		return err
	}
	noted, _ := parseBase(text)
	for _, base := range []uint32{noted, c.Base} {
		if base == 0 {
			continue
		}
		owner, err := readLink(rangeLink(c.Dir, base))
		if err != nil {
			return err
		}
		if owner == c.owner() {
			if err := remove(rangeLink(c.Dir, base)); err != nil {
				return err
			}
			fault.Point("ids given back")
		}
	}
	return remove(nodeLink(c.Dir, c.owner()))
}

func (c *Claim) etc() string {
	if c.Etc == "" {
		return "/etc"
	}
	return c.Etc
}

// first is the slot at which the search for a node's range begins.
func first(dir, node string) uint32 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(dir + "\x00" + node)) // never fails
	return uint32(h.Sum64() % slots)
}

func rangeLink(dir string, base uint32) string {
	return filepath.Join(dir, "range-"+strconv.FormatUint(uint64(base), 10))
}

func nodeLink(dir, node string) string { return filepath.Join(dir, "node-"+node) }

// parseBase reads the base of a range; ok is false if s is not one.
func parseBase(s string) (base uint32, ok bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n >= First && n <= Last && n%Size == 0
}

// readLink returns a link's content, "" if there is no such link.
func readLink(path string) (string, error) {
	text, err := os.Readlink(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read an id range's claim: %w", err)
	}
	return text, nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("give back an id range: %w", err)
	}
	return nil
}
