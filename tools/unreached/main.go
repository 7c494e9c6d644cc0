// Command unreached lists the functions of internal/ that make test does not reach, from the standard input: what go tool covdata func
// prints. Each is listed below the line of test/unreached that says why, and which test reaches it; it fails where one has no such line.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"berth/tools/tierlist"
)

// list is the list of reasons.
const list = "test/unreached"

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "unreached:", err)
		os.Exit(1)
	}
}

func run(counted io.Reader, out io.Writer) error {
	reasons, err := tierlist.Reasons(list)
	if err != nil {
		return err
	}
	unreached, of, err := read(counted)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d of %d functions of internal/ have no counter in make test.\n", len(unreached), of)
	var idle []string
	for _, r := range reasons {
		var has []string
		for _, place := range r.Places {
			before := len(has)
			for _, f := range unreached {
				if tierlist.Has(place, f.file, f.name) {
					has = append(has, f.String())
				}
			}
			if len(has) == before {
				idle = append(idle, place)
			}
			unreached = slices.DeleteFunc(unreached, func(f function) bool { return tierlist.Has(place, f.file, f.name) })
		}
		if len(has) > 0 {
			fmt.Fprintf(out, "\n%s; reached by: %s\n    %s\n", r.Why, strings.Join(r.Tests, ", "), strings.Join(has, "\n    "))
		}
	}
	if len(idle) > 0 {
		fmt.Fprintf(out, "\nin %s, and reached (take it out, unless chance had a part in it)\n    %s\n", list, strings.Join(idle, "\n    "))
	}
	if len(unreached) > 0 {
		fmt.Fprintf(out, "\nno reason in %s\n", list)
		for _, f := range unreached {
			fmt.Fprintf(out, "    %s\n", f)
		}
		return fmt.Errorf("%d functions that nothing in make test reaches have no line in %s", len(unreached), list)
	}
	return nil
}

// function is one of internal/.
type function struct{ file, name string } // host/group/freeze.go, *T.name

func (f function) String() string { return f.file + " " + f.name }

// read returns the functions of the tree whose counters are all 0, and how many there are. Programs of another commit, and builds with other
// tags, count functions anew, or functions that the tree has not; one without a statement has nothing to count.
func read(counted io.Reader) (unreached []function, of int, err error) {
	reached := map[function]bool{}
	for lines := bufio.NewScanner(counted); lines.Scan(); {
		fields := strings.Fields(lines.Text()) // berth/internal/a/b.go:12: *T.name 0.0%
		if len(fields) != 3 {
			continue
		}
		file, _, _ := strings.Cut(fields[0], ":")
		file, inside := strings.CutPrefix(file, "berth/internal/")
		if text, err := os.ReadFile("internal/" + file); inside && err == nil && tierlist.Declares(text, fields[1]) {
			f := function{file, fields[1]}
			reached[f] = reached[f] || fields[2] != "0.0%"
		}
	}
	if len(reached) == 0 {
		return nil, 0, fmt.Errorf("no counters of the tree's functions on the standard input")
	}
	for f, is := range reached {
		if !is {
			unreached = append(unreached, f)
		}
	}
	slices.SortFunc(unreached, func(a, b function) int { return strings.Compare(a.String(), b.String()) })
	return unreached, len(reached), nil
}
