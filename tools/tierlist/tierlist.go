// Package tierlist reads the lists below test/ that say which tests run where.
package tierlist

import (
	"fmt"
	"os"
	"strings"
)

// Entry is a test that is in a tier of its own, and not in the run of all.
type Entry struct {
	Tier    string // lab, measured, smoke
	Subject string // of the tier lab: net, storage, limits, site
	Package string // its path: berth/test/lab
	Test    string // its name: a top-level test
}

// Read reads the list of such tests, one a line:
//
//	TIER [SUBJECT] PACKAGE TEST — why; stays: PACKAGE.TEST, …
//
// The text after the dash is for people, and test/tree checks it.
func Read(name string) (all []Entry, err error) {
	lines, err := Lines(name)
	if err != nil {
		return nil, err
	}
	for _, line := range lines {
		what, _, _ := strings.Cut(line, "—")
		switch f := strings.Fields(what); len(f) {
		case 3:
			all = append(all, Entry{f[0], "", f[1], f[2]})
		case 4:
			all = append(all, Entry{f[0], f[1], f[2], f[3]})
		default:
			return nil, fmt.Errorf("%s: %q is not TIER [SUBJECT] PACKAGE TEST", name, line)
		}
	}
	return all, nil
}

// Lines reads a list. Empty lines and lines that begin with # are left out.
func Lines(name string) (lines []string, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			lines = append(lines, line)
		}
	}
	return lines, nil
}
