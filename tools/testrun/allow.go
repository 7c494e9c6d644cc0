package main

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// allowList holds the reasons for which a test may be skipped. A nil list allows every reason.
type allowList struct{ reasons []*regexp.Regexp }

// readAllowList reads one regular expression per line. It ignores empty lines and lines that begin with #.
func readAllowList(path string) (*allowList, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	a := &allowList{}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		re, err := regexp.Compile("^(?:" + line + ")$")
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n, err)
		}
		a.reasons = append(a.reasons, re)
	}
	return a, lines.Err()
}

// allows reports whether a test may be skipped for this reason. A skip without a reason never may.
func (a *allowList) allows(reason string) bool {
	if a == nil {
		return true
	}
	for _, re := range a.reasons {
		if reason != noReason && re.MatchString(reason) {
			return true
		}
	}
	return false
}
