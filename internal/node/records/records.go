// Package records reads the files that are kept for each node (spec, journals, status), and works out the node's present state.
package records

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/host/netif"
	"berth/internal/node/history"
	"berth/internal/node/plan"
	"berth/internal/runner"
	"berth/internal/spec/vnode"
	"berth/internal/storage/mounts"
	"berth/internal/sys/file"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Nodes reads and writes the records of the nodes of one layout. A caller that changes a node holds its lock.
type Nodes struct {
	Layout layout.Layout
	Host   host.Host
	Kinds  step.Kinds
}

// Stored is a node's spec as Berth keeps it.
type Stored struct {
	Applied *vnode.Node `json:"applied"` // as apply was given it
	Now     *vnode.Node `json:"now"`     // with the changes of berth set since

	// Rights are the rights of the template under which the files that the node keeps were written: see template.Rights. They are empty for
	// a node of a free spec, and for one of a berth that did not keep them.
	Rights map[string]string `json:"rights,omitempty"`
	// Covers is the content of the image under the node's delta (image.Image.Content); "" for an image that has none, and of a berth that did
	// not keep it.
	Covers string `json:"covers,omitempty"`
}

// Names lists the nodes of which any file exists.
func (r Nodes) Names() ([]string, error) {
	var all []string
	for _, dir := range []string{r.Layout.LibNodes(), r.Layout.RunNodes()} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list nodes: %w", err)
		}
		for _, e := range entries {
			all = append(all, e.Name())
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// Exists reports whether any file of the node exists in its own folders.
func (r Nodes) Exists(name string) bool {
	dirs := r.Layout.Node(name)
	return slices.ContainsFunc([]string{dirs.Lib, dirs.Run}, func(dir string) bool {
		_, err := os.Lstat(dir)
		return !errors.Is(err, fs.ErrNotExist)
	})
}

// Stored reads the spec of a node. It is not found if there is no such node, or one that is being made or removed.
func (r Nodes) Stored(name string) (*Stored, error) {
	if name != filepath.Base(name) || strings.HasPrefix(name, ".") { // it becomes part of paths
		return nil, refuse.NotFoundf("%q is not a node's name; berth ls lists the nodes", name)
	}
	var s Stored
	text := jsonfile.File{
		Path: r.Layout.Node(name).Spec(), Is: "the spec of node " + name,
		Remedy: fmt.Sprintf("berth apply -f FILE, with the spec of node %s, stores it anew: the node keeps what it wrote (stop it first if it runs)", name),
	}
	err := text.Read(&s)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, refuse.NotFoundf("no node %s; berth ls lists the nodes", name)
	case err == nil && (s.Now == nil || s.Applied == nil):
		return nil, text.Damaged("it holds no spec", nil)
	}
	return &s, err
}

// Store keeps the spec of a node, whose lock the caller holds, and returns when the disk has it, unless the node is a throw-away one.
func (r Nodes) Store(name string, s *Stored) error {
	dirs := r.Layout.Node(name)
	text, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("store the spec of node %s: %w", name, err)
	}
	text = append(text, '\n')
	if old, err := os.ReadFile(dirs.Spec()); err == nil && bytes.Equal(old, text) { // as when a node is started again
		return nil
	}
	write := file.Write
	if there(dirs.Throwaway()) {
		write = file.WriteForBoot
	}
	if err := write(dirs.Spec(), text, 0o600); err != nil {
		return err
	}
	if st, err := r.Noted(name); err == nil && !(slices.Equal(st.Unsafe, UnsafeDevices(s.Now)) && maps.Equal(st.Labels, s.Now.Labels)) {
		st.Unsafe, st.Labels = UnsafeDevices(s.Now), s.Now.Labels
		r.Note(st)
	}
	return nil
}

// ErrRebooted is the error of Live for a node whose live steps ended with the last boot.
var ErrRebooted = errors.New("the journal is from before the last boot")

// Live reads the journal of a node's live steps.
func (r Nodes) Live(name string) (*step.Journal, error) {
	j, err := step.Open(r.Layout.Node(name).Journal(), r.Kinds)
	if err != nil {
		return nil, err
	}
	boot, err := r.Host.BootID()
	if err != nil {
		return nil, errors.New(err.Error()) // not "no such file": callers take that for no journal
	}
	if j.Boot != boot {
		return nil, ErrRebooted
	}
	return j, nil
}

// Claims reads the journal of a node's claims.
func (r Nodes) Claims(name string) (*step.Journal, error) {
	j, err := step.Open(r.Layout.Node(name).Claims(), r.Kinds)
	if err == nil {
		j.Lasts = !history.Owned(j)
	}
	return j, err
}

// ErrLost is in the error of Lost.
var ErrLost = errors.New("the journal of claims is lost")

// Lost is an error if there is a node whose journal of claims is gone, empty or cut, as an older berth may have left it in a power
// cut: it is not known then what the node has, and nothing of it may be removed. A node that a killed command had only begun to
// make, and the rest of a throw-away node, do not count.
func (r Nodes) Lost(name string) error {
	dirs := r.Layout.Node(name)
	j, err := r.Claims(name)
	made, why := there(dirs.Spec()) || there(dirs.Delta()), ""
	switch {
	case errors.Is(err, fs.ErrNotExist):
		why = "is gone"
	case err != nil:
		return nil //nolint:nilerr // whoever reads it says so
	case j.Empty():
		why = "is empty"
	case j.Phase == step.Creating && !history.Whole(j): // before all was made, nothing ran that has a status
		made, why = there(dirs.Status()), "is cut off"
	}
	if !made || why == "" || there(dirs.Throwaway()) {
		return nil
	}
	return &refuse.Error{
		Kind: refuse.Failed, Err: ErrLost,
		What: fmt.Sprintf("%s (the journal of what node %s has) %s, as after a power failure; nothing of the node was removed", dirs.Claims(), name, why),
		Remedy: fmt.Sprintf("put it back from a backup; or copy what the node wrote (%s, and its volumes: berth pool ls), then berth rm --force %s, berth repair and berth apply -f FILE make it anew",
			dirs.Delta(), name),
	}
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// MadeInit returns the step that made the node's init, also where the node is still being started, or is being ended.
func (r Nodes) MadeInit(name string) (runner.Holder, error) {
	j, err := r.Live(name)
	if err != nil {
		return nil, err
	}
	c := runner.FirstProcess(j.Steps())
	if c == nil {
		return nil, fmt.Errorf("node %s has no process 1", name)
	}
	return c, nil
}

// CreatedInit is MadeInit of a node that was started.
func (r Nodes) CreatedInit(name string) (runner.Holder, error) {
	j, err := r.Live(name)
	if err != nil {
		return nil, err
	}
	if j.Phase != step.Up {
		return nil, fmt.Errorf("node %s is %s", name, j.Phase)
	}
	return r.MadeInit(name)
}

// LiveInit is CreatedInit of a node whose init runs.
func (r Nodes) LiveInit(name string) (runner.Holder, error) {
	c, err := r.CreatedInit(name)
	if err != nil {
		return nil, err
	}
	if !c.First().Alive() {
		return nil, fmt.Errorf("process 1 of node %s has ended", name)
	}
	return c, nil
}

// Dev says where a running node's /dev is.
func (r Nodes) Dev(name string) (mounts.Running, error) {
	init, err := r.LiveInit(name)
	if err != nil {
		return mounts.Running{}, err
	}
	claims, err := r.Claims(name)
	if err != nil {
		return mounts.Running{}, err
	}
	ids, err := plan.Range(claims.Steps())
	if err != nil {
		return mounts.Running{}, err
	}
	return mounts.Running{
		PID: init.First().PID, Start: init.First().Start, Owner: ids.Base, Stage: r.Layout.Node(name).Stage(),
	}, nil
}

// Fate reads the fate of a node. The error satisfies errors.Is(err, fs.ErrNotExist) if there is no node.
func (r Nodes) Fate(name string) (history.Fate, error) {
	claims, err := r.Claims(name)
	if err != nil {
		return history.Fate{}, err
	}
	return history.Of(claims)
}

// Made returns when a node was made. Of two nodes that have one name, one after the other, it tells which one is there.
func (r Nodes) Made(name string) (time.Time, error) {
	claims, err := r.Claims(name)
	if err != nil {
		return time.Time{}, err
	}
	return history.Made(claims), nil
}

// GroupPath is the cgroup of a stored node in every hierarchy, relative to its mount.
func (r Nodes) GroupPath(name string) string {
	s, err := r.Stored(name)
	if err != nil {
		return plan.GroupPath(r.Layout, &vnode.Node{Name: name})
	}
	return plan.GroupPath(r.Layout, s.Now)
}

// Frozen reports whether the kernel holds the node's processes.
func (r Nodes) Frozen(name string) bool {
	cg, err := host.ReadMounted()
	return err == nil && group.Frozen(cg, r.GroupPath(name))
}

// Hub is where the bridge between nodes is.
func (r Nodes) Hub() netif.Hub { return netif.Hub(r.Layout.Hub()) }
