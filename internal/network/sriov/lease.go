package sriov

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/sys/mac"
	"berth/internal/sys/step"
)

// Leases is the folder that records which node has which virtual function: one symbolic link per function, named by its
// PCI address, whose target is the lease. Making a link is atomic, including its content. There is one folder per host,
// whatever root the nodes are under. Changing it takes the host-wide lock.
type Leases string

// Owner is the owner of a virtual function: an interface of a node.
type Owner struct {
	Node string `json:"node"`
	If   string `json:"ifname"`
	Run  string `json:"run"` // the node's live folder, which distinguishes nodes of the same name under different roots
}

func (o Owner) String() string { return o.Node + "/" + o.If }

// Lease gives one virtual function to one owner, from a start of the node until its end.
type Lease struct {
	Owner
	PCI   string `json:"pci"`
	Token string `json:"token"` // random: a later lease of the same function to the same owner has another token
	Boot  string `json:"boot"`  // id of the boot in which it is valid
}

// Take writes the lease.
func (d Leases) Take(l Lease) error {
	if err := os.MkdirAll(string(d), 0o755); err != nil {
		return fmt.Errorf("lease virtual function %s: %w", l.PCI, err)
	}
	if err := d.remove(l.PCI); err != nil { // a lease that is no longer valid
		return err
	}
	text := strings.Join([]string{l.Boot, l.Token, l.Node, l.If, l.Run}, " ")
	if err := os.Symlink(text, filepath.Join(string(d), l.PCI)); err != nil {
		return fmt.Errorf("lease virtual function %s: %w", l.PCI, err)
	}
	return nil
}

// Read reads the lease of a virtual function. ok is false if there is no valid lease: a lease is invalid after a reboot,
// and if the node's live folder is gone. If neither can be told, the lease is valid: no other node may take the
// function.
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
	if boot, err := step.BootID(); err == nil && l.Boot != boot {
		return l, false
	}
	_, err = os.Stat(l.Run)
	return l, !errors.Is(err, fs.ErrNotExist)
}

// Of returns the lease of an owner.
func (d Leases) Of(o Owner) (Lease, bool) {
	for _, pci := range d.list() {
		if l, ok := d.Read(pci); ok && l.Owner == o {
			return l, true
		}
	}
	return Lease{}, false
}

// Held reports whether exactly this lease is still valid.
func (d Leases) Held(l Lease) bool {
	now, ok := d.Read(l.PCI)
	return ok && l.Token != "" && now == l
}

// Release removes the leases with this token, and no others.
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

// Reserve records the MACs that a leased function will have when it returns to the host. Until then neither the adapter
// nor a link shows them, and nothing else may use them. They are kept beside the lease, in a symbolic link of their
// own, and Release removes both.
func (d Leases) Reserve(l Lease, macs ...mac.Address) error {
	name := l.PCI + home
	if err := d.remove(name); err != nil {
		return err
	}
	words := []string{"home", l.Token} // the token second, as in a lease: see Release
	for _, one := range macs {
		words = append(words, one.String())
	}
	text := strings.Join(words, " ")
	if err := os.Symlink(text, filepath.Join(string(d), name)); err != nil {
		return fmt.Errorf("reserve the MACs of virtual function %s: %w", l.PCI, err)
	}
	return nil
}

// home is the suffix of the symbolic link that keeps a function's MACs.
const home = ".home"

// Reserved returns the MACs that leased functions will have on the host, each with a description of its function.
func (d Leases) Reserved() map[mac.Address]string {
	macs := map[mac.Address]string{}
	for _, pci := range d.list() {
		l, ok := d.Read(pci)
		text, err := os.Readlink(filepath.Join(string(d), pci+home))
		words := strings.Fields(text)
		if !ok || err != nil || len(words) < 2 || words[1] != l.Token {
			continue
		}
		for _, word := range words[2:] {
			one, err := mac.Parse(word)
			if err != nil {
				continue
			}
			macs[one] = "virtual function " + pci + ", as soon as node " + l.String() + " gives it back"
		}
	}
	return macs
}

// Name fills in the owners of an adapter's virtual functions.
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
