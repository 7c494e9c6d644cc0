package tierlist

import (
	"fmt"
	"path"
	"regexp"
	"strings"
)

// Reason says why the counters of make test show nothing of some functions of internal/.
type Reason struct {
	Places []string // PACKAGE/, FILE.go, or FILE.go:FUNCTION, below internal/
	Why    string
	Tests  []string // PACKAGE.TEST, or "test/script NAME"
}

// Reasons reads the list of them, one a line:
//
//	PLACE … — why; reached by: PACKAGE.TEST, test/script NAME, …
func Reasons(name string) (all []Reason, err error) {
	lines, err := Lines(name)
	if err != nil {
		return nil, err
	}
	for _, line := range lines {
		places, rest, dash := strings.Cut(line, " — ")
		why, tests, reached := strings.Cut(rest, "; reached by: ")
		if !dash || !reached || why == "" {
			return nil, fmt.Errorf("%s: %q is not PLACE … — why; reached by: PACKAGE.TEST, test/script NAME, …", name, line)
		}
		r := Reason{Places: strings.Fields(places), Why: why}
		for test := range strings.SplitSeq(tests, ",") {
			r.Tests = append(r.Tests, strings.TrimSpace(test))
		}
		all = append(all, r)
	}
	return all, nil
}

// Has reports whether a place is, or has, a function of a file.
func Has(place, file, function string) bool {
	return place == file+":"+function || place == file || place == path.Dir(file)+"/"
}

// Declares reports whether the text of a file has a function of this name ("F", "T.F", "*T.F") with something to do: one that is empty has
// nothing to count.
func Declares(text []byte, function string) bool {
	receiver, name := `(\([^)]*\) )?`, function // those of generic types have none in their name
	if of, method, is := strings.Cut(function, "."); is {
		receiver, name = `\((\w+ )?`+regexp.QuoteMeta(of)+`\) `, method
	}
	head := regexp.MustCompile(`(?m)^func ` + receiver + regexp.QuoteMeta(name) + `[\[(].*$`).Find(text)
	return head != nil && !strings.HasSuffix(string(head), " {}")
}
