// Command movetorooms moves the packages below internal/ into the rooms of the house, internal/ROOM/PACKAGE, in the git working tree
// that it is started in: folders and files, package clauses, imports and qualifiers, and what tests, scripts, lists and documents say of them.
// Kept evidence, the changelog and testdata stay as they are. A second run changes nothing; one after a merge moves what the merge
// brought. A package that the table (table.go) has no place for is an error, before anything is changed.
//
// Run scripts/move-to-rooms in a clean working tree, then gofmt -l, go vet, go test ./test/tree.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "move-to-rooms:", err)
		os.Exit(1)
	}
}

// tree is the working tree before the move.
type tree struct {
	files []string
	moves map[string]string // files that get another path
}

func run() error {
	if _, err := os.Stat("go.mod"); err != nil {
		return errors.New("start it in the root of the tree")
	}
	if out, err := exec.Command("git", "status", "--porcelain", "--untracked-files=no").Output(); err != nil || len(out) > 0 {
		return fmt.Errorf("the working tree has changes that are not committed (%w): commit them first", err)
	}
	out, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		return fmt.Errorf("git ls-files: %w", err)
	}
	t := tree{files: strings.Split(strings.Trim(string(out), "\x00"), "\x00"), moves: map[string]string{}}
	if err := t.plan(); err != nil {
		return err
	}
	texts := map[string][]byte{} // by their new path
	for _, name := range t.files {
		if info, err := os.Lstat(name); err != nil || !info.Mode().IsRegular() || strings.HasPrefix(name, "tools/movetorooms/") {
			continue
		}
		text, err := os.ReadFile(filepath.Clean(name))
		if err != nil {
			return err
		}
		changed, err := t.rewrite(name, text)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if !bytes.Equal(changed, text) {
			texts[t.after(name)] = changed
		}
	}
	return t.carry(texts)
}

// plan fills in the moves.
func (t tree) plan() error {
	taken := map[string]string{}
	var lost []string
	for _, name := range t.files {
		dir := path.Dir(name)
		to, known := place(dir)
		if !known && strings.HasPrefix(dir, "internal/") && path.Ext(name) == ".go" && !slices.Contains(lost, dir) {
			lost = append(lost, dir)
		}
		base := path.Base(name)
		if from, now, yes := renamed(dir); yes && to != dir {
			for _, ext := range []string{".go", "_test.go"} {
				if base == from+ext && !slices.Contains(t.files, path.Join(dir, now+ext)) {
					base = now + ext
				}
			}
		}
		after := path.Join(to, base)
		if other, yes := taken[after]; yes {
			return fmt.Errorf("%s and %s would both become %s", other, name, after)
		}
		taken[after] = name
		if after != name {
			t.moves[name] = after
		}
	}
	if len(lost) > 0 {
		return fmt.Errorf("no place for %s: give each a line in table.go of tools/movetorooms", strings.Join(lost, ", "))
	}
	return nil
}

// after returns the path that a file has after the move.
func (t tree) after(name string) string {
	if to, moves := t.moves[name]; moves {
		return to
	}
	return name
}

// carry moves the files, writes those that changed, and tells git.
func (t tree) carry(texts map[string][]byte) error {
	for from, to := range t.moves {
		if err := os.MkdirAll(path.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.Rename(from, to); err != nil {
			return err
		}
		for dir := path.Dir(from); os.Remove(dir) == nil; dir = path.Dir(dir) { // folders that are empty now
			fmt.Println("left", dir)
		}
	}
	for name, text := range texts {
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(name, text, info.Mode()); err != nil {
			return err
		}
	}
	if len(t.moves)+len(texts) == 0 {
		fmt.Println("nothing to move")
		return nil
	}
	if out, err := exec.Command("git", "add", "-A", ".").CombinedOutput(); err != nil {
		return fmt.Errorf("git add: %w: %s", err, out)
	}
	fmt.Printf("%d files moved, %d files changed\n", len(t.moves), len(texts))
	return nil
}
