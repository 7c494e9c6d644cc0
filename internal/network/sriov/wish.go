package sriov

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/sys/file"
	"berth/internal/sys/jsonfile"
)

// Wishes is the folder that says how many virtual functions each adapter shall have, also after a reboot or a reload of
// its driver: one file per adapter, named by its PCI address.
type Wishes string

// Wish is the wish for one adapter.
type Wish struct {
	PF  string `json:"pf"` // the adapter's name when the wish was written
	PCI string `json:"pci"`
	VFs int    `json:"vfs"`
	Set bool   `json:"set"` // it was fulfilled once; before, functions without a driver are left by a killed Enable
}

// Keep writes a wish.
func (d Wishes) Keep(w Wish) error {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return fmt.Errorf("keep what virtual functions there shall be: %w", err)
	}
	if err := file.WriteJSON(filepath.Join(string(d), w.PCI), w); err != nil {
		return fmt.Errorf("keep what virtual functions there shall be: %w", err)
	}
	return nil
}

// Forget removes the wish for an adapter, if there is one.
func (d Wishes) Forget(pci string) error {
	if err := file.Remove(filepath.Join(string(d), pci)); err != nil {
		return fmt.Errorf("forget what virtual functions there shall be: %w", err)
	}
	return nil
}

// All reads all wishes. The error is about those that cannot be read; the others are returned too.
func (d Wishes) All() ([]Wish, error) {
	entries, err := os.ReadDir(string(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what virtual functions there shall be: %w", err)
	}
	var all []Wish
	var errs []error
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), file.Unwritten) {
			continue
		}
		var w Wish
		wish := jsonfile.File{
			Path: filepath.Join(string(d), e.Name()), Is: "how many virtual functions an adapter shall have",
			Remedy: "remove it, then berth vf enable ADAPTER N",
		}
		if err := wish.Read(&w); err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, w)
	}
	return all, errors.Join(errs...)
}

// ByPCI finds an adapter by its PCI address, because its name may have changed.
func ByPCI(all []PF, pci string) (PF, bool) {
	for _, pf := range all {
		if pf.PCI == pci {
			return pf, true
		}
	}
	return PF{}, false
}
