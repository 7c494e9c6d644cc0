package group

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"berth/internal/sys/lock"
)

// protections returns the files whose effect the parent's value caps (mm/page_counter.c: effective_protection): without a
// value in the parent, a node's value does nothing.
func protections() []string { return []string{"memory.low", "memory.min"} }

// sumIn sets a value of a group to the sum of the groups in it. Several processes may do so at once: each reads and writes
// under a lock of the group's folder.
func sumIn(parent, name string) error {
	return withSum(parent, name, func(file, sum string) error { return WriteFile(file, sum) })
}

// short returns a group's value if that is less than the sum of the values of the groups in it; "" if it is enough.
func short(parent, name string) (has string, err error) {
	err = withSum(parent, name, func(file, sum string) error {
		text, err := ReadFile(file)
		if err == nil && number(text) < number(sum) {
			has = text
		}
		return err
	})
	return has, err
}

// number is a value of such a file; "max" is the greatest.
func number(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return math.MaxInt64
	}
	return n
}

// withSum calls f with a file of a group and the sum of those of the groups in it, under a lock of the group's folder.
func withSum(parent, name string, f func(file, sum string) error) error {
	file := filepath.Join(parent, name)
	if _, err := os.Stat(file); Gone(err) {
		return nil // the root of the tree has no such file
	}
	dir, err := lock.OpenDir(context.Background(), parent)
	if err != nil {
		return fmt.Errorf("protect the groups in %s: %w", parent, err)
	}
	defer dir.Close() // also releases the lock
	entries, err := os.ReadDir(parent)
	if err != nil {
		return fmt.Errorf("list groups: %w", err)
	}
	var sum uint64
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		text, err := ReadFile(filepath.Join(parent, e.Name(), name))
		if Gone(err) {
			continue
		}
		if err != nil {
			return err
		}
		n := number(text)
		if n > math.MaxInt64-1-sum {
			return f(file, "max")
		}
		sum += n
	}
	return f(file, strconv.FormatUint(sum, 10))
}
