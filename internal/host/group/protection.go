package group

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// protections returns the files whose effect the parent's value caps (mm/page_counter.c: effective_protection): without a
// value in the parent, a node's value does nothing.
func protections() []string { return []string{"memory.low", "memory.min"} }

// sumIn sets a value of a group to the sum of the groups in it. Several processes may do so at once: each looks again after it has written,
// and so the last one to write has seen what all have. A lock would be one of the group's folder, which every user of the host can take.
func sumIn(parent, name string) error {
	for {
		sum, err := sumOf(parent, name)
		if err == nil && sum != "" {
			err = WriteFile(filepath.Join(parent, name), sum)
		}
		if err != nil || sum == "" {
			return err
		}
		if now, err := sumOf(parent, name); err != nil || now == sum {
			return err
		}
	}
}

// short returns a group's value if that is less than the sum of the values of the groups in it; "" if it is enough. A command that sets a
// group's value writes the sum after it, so short looks three times.
func short(parent, name string) (has string, err error) {
	for range 3 {
		if has != "" {
			time.Sleep(10 * time.Millisecond)
		}
		sum, err := sumOf(parent, name)
		if err != nil || sum == "" {
			return "", err
		}
		if has, err = ReadFile(filepath.Join(parent, name)); err != nil || number(has) >= number(sum) {
			return "", err
		}
	}
	return has, nil
}

// number is a value of such a file; "max" is the greatest.
func number(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return math.MaxInt64
	}
	return n
}

// sumOf returns the sum of a value of the groups in a group; "" if the group has no such value, as the root of the tree has none.
func sumOf(parent, name string) (string, error) {
	if _, err := os.Stat(filepath.Join(parent, name)); Gone(err) {
		return "", nil
	}
	entries, err := os.ReadDir(parent)
	if err != nil {
		return "", fmt.Errorf("list groups: %w", err)
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
			return "", err
		}
		n := number(text)
		if n > math.MaxInt64-1-sum {
			return "max", nil
		}
		sum += n
	}
	return strconv.FormatUint(sum, 10), nil
}
