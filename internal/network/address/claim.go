package address

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"berth/internal/sys/file"
	"berth/internal/sys/refuse"
)

// ClaimAddress reserves an address on the host-only bridge for an interface of a node until the node is removed. Only
// nodes of this host are on that bridge, so an index is enough: a folder with one symbolic link per address, like the
// index of MACs. On other networks Probe asks whether an address is in use.
type ClaimAddress struct {
	Dir     string `json:"dir"` // the index
	Node    string `json:"node"`
	If      string `json:"ifname"`
	Address string `json:"address"` // without prefix length
}

// Kind implements step.Step.
func (c *ClaimAddress) Kind() string { return "link.claim-address" }

func (c *ClaimAddress) String() string { return c.If + " " + c.Address + ", on the host-only bridge" }

// Do claims the address; refuse.Busy if another node has it.
func (c *ClaimAddress) Do(context.Context) error {
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return fmt.Errorf("claim address %s: %w", c.Address, err)
	}
	err := os.Symlink(c.owner(), c.path())
	if !errors.Is(err, fs.ErrExist) {
		if err != nil {
			err = fmt.Errorf("claim address %s: %w", c.Address, err)
		}
		return err
	}
	return c.Verify(context.Background())
}

// Verify reads the claim back.
func (c *ClaimAddress) Verify(context.Context) error {
	who, err := os.Readlink(c.path())
	if err != nil {
		return fmt.Errorf("read claim of address %s: %w", c.Address, err)
	}
	if who != c.owner() {
		return refuse.Busyf("address %s of %s is taken by node %s", c.Address, c.If, who)
	}
	return nil
}

// OnDisk implements step.Lasting.
func (c *ClaimAddress) OnDisk() error { return file.SyncDir(c.Dir) }

// Undo releases the address.
func (c *ClaimAddress) Undo(context.Context) error {
	if err := GiveBack(c.path(), c.owner()); err != nil {
		return fmt.Errorf("give address %s back: %w", c.Address, err)
	}
	return nil
}

func (c *ClaimAddress) owner() string { return c.Node + "/" + c.If }

func (c *ClaimAddress) path() string { return filepath.Join(c.Dir, c.Address) }
