package runner

import (
	"context"
	"os"
	"path/filepath"

	"berth/internal/storage/mounts"
	"berth/internal/sys/file"
)

// Trial says how the runners of a host may be tried, with a node that ends at once.
type Trial struct {
	Cache string // file with the choice
	Boot  string // boot id: a choice is valid for one boot
	Dir   string // an existing folder that the node's ids can reach (all parents searchable by others); for folders named TrialPrefix…
	IDs   mounts.IDs
	// Begin is called when runners must be tried indeed. It returns a program to run and the groups for it, and the lock that a
	// runner holds while it works. end removes the leftovers of the trial; nothing of it runs any more then.
	Begin  func(ctx context.Context) (b Bench, end func() error, err error)
	Rounds int // number of runs of each runner; 0 means 5
}

// Bench is the preparation of a trial by Trial.Begin.
type Bench struct {
	Program string   // a static program of the host
	Args    []string // its arguments; it must print something and end
	Groups  Groups
	Lock    *os.File
}

// TrialPrefix begins the names of the folders of trials.
const TrialPrefix = "probe-"

// TrialLeft returns the files and folders that killed trials left. No trial may be running.
func TrialLeft(dir, cache string) []string {
	left, _ := filepath.Glob(filepath.Join(dir, TrialPrefix+"*")) // the only error is that of a bad pattern
	if _, err := os.Lstat(cache + file.Unwritten); err == nil {
		left = append(left, cache+file.Unwritten)
	}
	return left
}
