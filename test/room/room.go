// Package room makes room on one host for the agents of many.
package room

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// For lets root follow enough folders for so many agents at once: on a host there is one. It is put back with the end of the test.
func For(t *testing.T, agents int) {
	t.Helper()
	const file, each, others = "/proc/sys/fs/inotify/max_user_instances", 4, 100
	had, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(had)))
	if err != nil || n >= agents*each+others {
		return
	}
	if err := os.WriteFile(file, fmt.Append(nil, agents*each+others), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(file, had, 0); err != nil {
			t.Error(err)
		}
	})
}
