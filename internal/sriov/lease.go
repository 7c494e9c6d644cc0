package sriov

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/step"
)

// Leases is the folder that says which node has which virtual function: one symbolic link a function, named by its PCI
// address, whose target is the lease. Making one is atomic, content included. There is one folder a host, whatever
// root the nodes are under; who changes it holds the host-wide lock.
type Leases string

// Owner is who may have a virtual function: an interface of a node.
type Owner struct {
	Node string `json:"node"`
	If   string `json:"ifname"`
	Run  string `json:"run"` // the node's live folder, which tells nodes of the same name under different roots apart
}

func (o Owner) String() string { return o.Node + "/" + o.If }

// Lease is one virtual function given to one owner, from a start of the node until its end.
type Lease struct {
	Owner
	PCI   string `json:"pci"`
	Token string `json:"token"` // random: a later lease of the same function to the same owner has another
	Boot  string `json:"boot"`  // id of the boot that it holds in
}

// Take writes the lease.
func (d Leases) Take(l Lease) error {
	if err := os.MkdirAll(string(d), 0o755); err != nil {
		return fmt.Errorf("lease virtual function %s: %w", l.PCI, err)
	}
	if err := d.remove(l.PCI); err != nil { // a stale one
		return err
	}
	text := strings.Join([]string{l.Boot, l.Token, l.Node, l.If, l.Run}, " ")
	if err := os.Symlink(text, filepath.Join(string(d), l.PCI)); err != nil {
		return fmt.Errorf("lease virtual function %s: %w", l.PCI, err)
	}
	return nil
}

// Read reads the lease of a virtual function. ok is false if there is none that holds: one from before the last boot
// does not, nor one whose node has nothing live any more.
func (d Leases) Read(pci string) (l Lease, ok bool) {
	text, err := os.Readlink(filepath.Join(string(d), pci))
	if err != nil {
		return Lease{}, false
	}
	words := strings.SplitN(text, " ", 5)
	if len(words) != 5 {
		return Lease{}, false
	}
	l = Lease{PCI: pci, Boot: words[0], Token: words[1], Owner: Owner{Node: words[2], If: words[3], Run: words[4]}}
	if boot, err := step.BootID(); err != nil || l.Boot != boot {
		return l, false
	}
	_, err = os.Stat(l.Run)
	return l, err == nil
}

// Of returns the lease that an owner has.
func (d Leases) Of(o Owner) (Lease, bool) {
	for _, pci := range d.list() {
		if l, ok := d.Read(pci); ok && l.Owner == o {
			return l, true
		}
	}
	return Lease{}, false
}

// Held reports whether exactly this lease holds still.
func (d Leases) Held(l Lease) bool {
	now, ok := d.Read(l.PCI)
	return ok && l.Token != "" && now == l
}

// Release ends the leases with this token, and no other.
func (d Leases) Release(token string) error {
	for _, pci := range d.list() {
		text, err := os.Readlink(filepath.Join(string(d), pci))
		if words := strings.SplitN(text, " ", 3); err != nil || len(words) < 3 || words[1] != token {
			continue
		}
		if err := d.remove(pci); err != nil {
			return err
		}
	}
	return nil
}

// Reserve keeps the MACs that a leased function will come home with: until then neither the adapter nor a link shows them,
// and nobody else shall have them. It is kept beside the lease, in a link of its own, and ends with it.
func (d Leases) Reserve(l Lease, macs ...string) error {
	name := l.PCI + home
	if err := d.remove(name); err != nil {
		return err
	}
	text := strings.Join(append([]string{"home", l.Token}, macs...), " ") // the token where a lease has it: see Release
	if err := os.Symlink(text, filepath.Join(string(d), name)); err != nil {
		return fmt.Errorf("reserve the MACs of virtual function %s: %w", l.PCI, err)
	}
	return nil
}

// home ends the name of the link that keeps a function's MACs.
const home = ".home"

// Reserved maps the MACs that leased functions will come home with to the functions.
func (d Leases) Reserved() map[string]string {
	macs := map[string]string{}
	for _, pci := range d.list() {
		l, ok := d.Read(pci)
		text, err := os.Readlink(filepath.Join(string(d), pci+home))
		words := strings.Fields(text)
		if !ok || err != nil || len(words) < 2 || words[1] != l.Token {
			continue
		}
		for _, mac := range words[2:] {
			macs[mac] = "virtual function " + pci + ", as soon as node " + l.String() + " gives it back"
		}
	}
	return macs
}

// Name fills in who has the virtual functions of an adapter.
func (d Leases) Name(pf *PF) {
	for i := range pf.VFs {
		if l, ok := d.Read(pf.VFs[i].PCI); ok {
			pf.VFs[i].Owner = l.String()
		}
	}
}

func (d Leases) list() []string {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil
	}
	all := make([]string, len(entries))
	for i, e := range entries {
		all[i] = e.Name()
	}
	return all
}

func (d Leases) remove(pci string) error {
	if err := os.Remove(filepath.Join(string(d), pci)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("end the lease of virtual function %s: %w", pci, err)
	}
	return nil
}
