package address

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Claimants returns the nodes that have a claim in an index: a folder of symbolic links whose targets are NODE/IFNAME,
// such as the indexes of MACs and of addresses.
func Claimants(index string) ([]string, error) {
	var nodes []string
	err := eachClaim(index, func(_, node string) error {
		nodes = append(nodes, node)
		return nil
	})
	return nodes, err
}

// Release removes all claims of a node from an index. It is for a node whose journal was lost; normally the steps do
// it.
func Release(index, node string) error {
	return eachClaim(index, func(path, owner string) error {
		if owner != node {
			return nil
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("give back a claim of node %s: %w", node, err)
		}
		return nil
	})
}

// GiveBack removes a claim if it is the owner's.
func GiveBack(path, owner string) error {
	if who, err := os.Readlink(path); err != nil || who != owner {
		return nil //nolint:nilerr // no claim of the owner's, nothing to give back
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func eachClaim(index string, f func(path, node string) error) error {
	entries, err := os.ReadDir(index)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list claims: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(index, e.Name())
		to, err := os.Readlink(path)
		if err != nil {
			continue // removed meanwhile
		}
		node, _, _ := strings.Cut(to, "/")
		if err := f(path, node); err != nil {
			return err
		}
	}
	return nil
}
