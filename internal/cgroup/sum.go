package cgroup

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// protections returns the files whose effect the parent's value caps (mm/page_counter.c: effective_protection): without a
// value in the parent, a node's value does nothing.
func protections() []string { return []string{"memory.low", "memory.min"} }

// sumUp sets the value of the parent of w's group to the sum of the groups in it. Several processes may do so at once: each
// reads and writes under a lock of the parent's folder.
func (w Write) sumUp() error {
	return sumIn(filepath.Dir(filepath.Dir(w.File)), filepath.Base(w.File))
}

func sumIn(parent, name string) error {
	file := filepath.Join(parent, name)
	dir, err := os.Open(parent)
	if err != nil {
		return fmt.Errorf("protect the groups in %s: %w", parent, err)
	}
	defer dir.Close() // also releases the lock
	if _, err := os.Stat(file); gone(err) {
		return nil // the root of the tree has no such file
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", parent, err)
	}
	entries, err := os.ReadDir(parent)
	if err != nil {
		return fmt.Errorf("list groups: %w", err)
	}
	var sum uint64
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		text, err := readFile(filepath.Join(parent, e.Name(), name))
		if gone(err) {
			continue
		}
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(text, 10, 63)
		if err != nil || n > math.MaxInt64-sum { // "max"
			return writeFile(file, "max")
		}
		sum += n
	}
	return writeFile(file, strconv.FormatUint(sum, 10))
}
