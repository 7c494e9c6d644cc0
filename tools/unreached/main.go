// Command unreached lists the functions of internal/ that make test does not reach, from the standard input: what go tool covdata func
// prints. Each is listed below the line of test/unreached that says why, and which test has it; it fails where one has no such line.
package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

func main() {
	if err := list(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "unreached:", err)
		os.Exit(1)
	}
}

func list(counted io.Reader, out io.Writer) error {
	reasons, err := os.ReadFile("test/unreached")
	if err != nil {
		return err
	}
	unreached, of, err := read(counted)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d of %d functions of internal/ have no counter in make test.\n", len(unreached), of)
	for line := range strings.Lines(string(reasons)) {
		places, why, ok := strings.Cut(strings.TrimSpace(line), " — ")
		if !ok {
			continue // a comment
		}
		var has []string
		for place := range strings.FieldsSeq(places) {
			for _, f := range slices.Clone(unreached) {
				if strings.HasPrefix(f, place) {
					has = append(has, f)
					unreached = slices.DeleteFunc(unreached, func(u string) bool { return u == f })
				}
			}
		}
		if len(has) > 0 {
			fmt.Fprintf(out, "\n%s\n    %s\n", why, strings.Join(has, "\n    "))
		}
	}
	if len(unreached) > 0 {
		fmt.Fprintf(out, "\nno reason in test/unreached\n    %s\n", strings.Join(unreached, "\n    "))
		return fmt.Errorf("%d functions that nothing in make test reaches have no line in test/unreached", len(unreached))
	}
	return nil
}

// read returns the functions of the tree whose counters are all 0, as "host/group/freeze.go freezer.tooLong", and how many there are. Programs
// of another commit, and builds with other tags, count functions anew, or functions that the tree has not.
func read(counted io.Reader) (unreached []string, of int, err error) {
	reached := map[string]bool{}
	for lines := bufio.NewScanner(counted); lines.Scan(); {
		fields := strings.Fields(lines.Text()) // berth/internal/a/b.go:12: *T.name 0.0%
		if len(fields) != 3 {
			continue
		}
		file, _, _ := strings.Cut(fields[0], ":")
		file, inside := strings.CutPrefix(file, "berth/internal/")
		if text, err := os.ReadFile("internal/" + file); inside && err == nil && declares(text, fields[1]) {
			f := file + " " + fields[1]
			reached[f] = reached[f] || fields[2] != "0.0%"
		}
	}
	if len(reached) == 0 {
		return nil, 0, fmt.Errorf("no counters of the tree's functions on the standard input")
	}
	of = len(reached)
	maps.DeleteFunc(reached, func(_ string, is bool) bool { return is })
	return slices.Sorted(maps.Keys(reached)), of, nil
}

// declares reports whether a file has a function, or a method, of this name.
func declares(text []byte, function string) bool {
	name := function[strings.LastIndex(function, ".")+1:]
	return regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + regexp.QuoteMeta(name) + `[\[(]`).Match(text)
}
