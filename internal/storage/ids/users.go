package ids

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/file"
)

// Users is the step that notes which ids a node has besides those of its own ranges, as its spec says. Ids that it shares with
// the host are noted in the folder of claims too: several nodes may share the same. The notes last until the node is removed.
type Users struct {
	Dir     string           `json:"dir"` // layout's IDs
	Node    string           `json:"node"`
	Extents []vnode.IDExtent `json:"extents"`
}

// Kind names the step in journals.
func (u *Users) Kind() string { return "ids.users" }

// Key identifies the step by the ids that it notes.
func (u *Users) Key() string { return u.Node + " " + vnode.Extents(u.Extents) }

func (u *Users) String() string {
	var shared, own []string
	for _, e := range u.Extents {
		text := e.Range().String()
		if e.Of != "" {
			text += " (" + e.Of + ")"
		}
		if e.As == vnode.SameIDs {
			shared = append(shared, text)
		} else {
			own = append(own, text)
		}
	}
	var parts []string
	if len(shared) > 0 {
		parts = append(parts, "ids "+strings.Join(shared, ", ")+" of "+u.Node+" are the host's own, shared with other nodes: root inside is each of these users")
	}
	if len(own) > 0 {
		parts = append(parts, "ids "+strings.Join(own, ", ")+" of "+u.Node+" are of its own ranges")
	}
	return strings.Join(parts, "; ")
}

// Do makes the links.
func (u *Users) Do(context.Context) error {
	if err := os.MkdirAll(u.Dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of id ranges: %w", err)
	}
	for _, link := range u.links() {
		if err := os.Symlink(u.Node, link); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("note the ids that %s shares with the host: %w", u.Node, err)
		}
		fault.Point("shared ids noted")
	}
	return nil
}

// Verify reads the links back.
func (u *Users) Verify(context.Context) error {
	for _, link := range u.links() {
		if owner, err := readLink(link); err != nil || owner != u.Node {
			return errors.Join(fmt.Errorf("%s is not noted for %s", filepath.Base(link), u.Node), err)
		}
	}
	return nil
}

// OnDisk implements step.Lasting.
func (u *Users) OnDisk() error {
	if len(u.links()) == 0 {
		return nil
	}
	return file.SyncDir(u.Dir)
}

// Undo removes all notes of the node, also those that a killed Do made.
func (u *Users) Undo(context.Context) error {
	entries, err := os.ReadDir(u.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list shared ids: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "same-"+u.Node+"+") {
			if err := remove(filepath.Join(u.Dir, e.Name())); err != nil {
				return err
			}
			fault.Point("shared ids given back")
		}
	}
	return nil
}

// links returns the paths of the notes: one a range, whether it is of users, groups or both.
func (u *Users) links() []string {
	var all []string
	for _, e := range u.Extents {
		if e.As == vnode.SameIDs {
			all = append(all, filepath.Join(u.Dir, fmt.Sprintf("same-%s+%d+%d", u.Node, e.From, e.Count)))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Shared returns which nodes have noted in the folder dir that they share ids with the host, and which ids.
func Shared(dir string) (map[string][]vnode.IDRange, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list shared ids: %w", err)
	}
	all := map[string][]vnode.IDRange{}
	for _, e := range entries {
		name, ok := strings.CutPrefix(e.Name(), "same-")
		words := strings.Split(name, "+")
		if !ok || len(words) != 3 {
			continue
		}
		from, err1 := strconv.Atoi(words[1])
		count, err2 := strconv.Atoi(words[2])
		if err1 == nil && err2 == nil {
			all[words[0]] = append(all[words[0]], vnode.IDRange{From: from, Count: count})
		}
	}
	return all, nil
}

// GiveBack gives back all that a node has in the folder dir, of which its journal may know nothing.
func GiveBack(ctx context.Context, dir, node string) error {
	err := errors.Join((&Claim{Dir: dir, Node: node}).Undo(ctx), (&Users{Dir: dir, Node: node}).Undo(ctx))
	entries, listErr := os.ReadDir(dir)
	if listErr != nil && !errors.Is(listErr, fs.ErrNotExist) {
		return errors.Join(err, fmt.Errorf("list id ranges: %w", listErr))
	}
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), "node-"+node+"+")
		if part, numberErr := strconv.Atoi(rest); ok && numberErr == nil {
			err = errors.Join(err, (&Claim{Dir: dir, Node: node, Part: part}).Undo(ctx))
		}
	}
	return err
}
