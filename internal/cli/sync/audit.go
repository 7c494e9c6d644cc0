package sync

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"berth/internal/host/block"
	"berth/internal/sys/refuse"
	"berth/internal/sys/sibling"
)

// program loads programs of BPF. It is a program of its own because reading the kernel's types would slow each start of
// berth.
const program = "berth-sync"

func (c Commands) audit() *cobra.Command {
	var path string
	var during time.Duration
	a := &cobra.Command{
		Use: "audit FILESYSTEM", Short: "count a file system's I/O by node, and what limits do not reach",
		Args: cobra.ExactArgs(1),
		Long: `Count what this file server reads and writes on the disk of a file system, by
the node that asked and by the group that was charged: what is charged to
another group than the node's is a leak, which no limit of the node's holds. It
ends after --for or by Ctrl-C, and prints what it has; nothing stays in the
kernel.

Whose request it is: the node that the thread last received from by TCP, over a
connection it accepted; of a thread that receives nothing, the one that its
process or its process's parent serves. What was written to memory and reaches
the disk later, and the journal, are counted apart: nobody can say for whom.
Where the kernel refuses BPF at submit_bio, what a limit holds is counted for
the only peer that waits in the group; if several wait, it is unknown.

Only what happens after the start is seen: a thread that received its request
before is unknown until it receives again.

Exit codes: 3 the kernel refuses the programs, there is no berth-sync beside
berth, or this is not root; 4 no such file system is served here.`,
		Example:           "  berth sync audit shared --for 30s\n  berth sync audit shared --for 5m --json",
		ValidArgsFunction: c.fileSystems,
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := c.folder(args[0])
			if err != nil {
				return err
			}
			disk, err := diskOf(dir, path)
			if err != nil {
				return err
			}
			if during <= 0 {
				return refuse.Invalidf("--for %s is no time to count for, for example 30s", during)
			}
			if os.Geteuid() != 0 {
				return refuse.Cannotf("run it with sudo", "audit %s: only root can load programs into the kernel", args[0])
			}
			to, err := sibling.Find(program, "file systems are audited", "make install puts both there")
			if err != nil {
				return err
			}
			words := []string{to, "audit", "--dir=" + dir, "--disk=" + disk, "--for=" + during.String()}
			if *c.JSON {
				words = append(words, "--json")
			}
			if err := unix.Exec(to, words, os.Environ()); err != nil {
				return fmt.Errorf("start %s: %w", to, err)
			}
			return nil
		},
	}
	a.Flags().DurationVar(&during, "for", 30*time.Second, "count for this `TIME`, or until Ctrl-C")
	a.Flags().StringVar(&path, "path", "", "count the disk under this `DIR` (default: the file system's)")
	_ = a.MarkFlagDirname("path") // fails only for an unknown flag
	return c.JSONFlag(a)
}

// published is where berthd keeps a folder for each file system that this host serves.
func (c Commands) published() string { return filepath.Join(c.Open().Layout.Run, "sync") }

// folder returns the folder of a file system.
func (c Commands) folder(name string) (string, error) {
	if name == "" || name != filepath.Base(name) || strings.HasPrefix(name, ".") {
		return "", refuse.Invalidf("%q is no name of a file system", name)
	}
	dir := filepath.Join(c.published(), name)
	_, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", refuse.NotFoundf("this host serves no file system %s: berthd's configuration names those that it serves", name)
	}
	return dir, err
}

// fileSystems completes the names of file systems.
func (c Commands) fileSystems(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	all, _ := os.ReadDir(c.published())
	names := make([]string, 0, len(all))
	for _, e := range all {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// diskOf returns the number of the disk under a path; without one, that of the file system's record.
func diskOf(dir, path string) (string, error) {
	if path != "" {
		d, err := block.Under("/sys", path)
		return d.Number(), err
	}
	b, err := os.ReadFile(filepath.Join(dir, "disk"))
	if err != nil {
		return "", refuse.Cannotf("name a folder on it with --path", "find the disk of %s: %w", filepath.Base(dir), err)
	}
	return strings.TrimSpace(string(b)), nil
}
