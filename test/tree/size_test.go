package tree

import (
	"bytes"
	"testing"
)

// The largest number of lines of a file, of a test file, and of a package without its tests. A file has one subject, and a package
// does what its comment says in one sentence.
const (
	mostFile    = 400
	mostTest    = 450
	mostPackage = 4000
)

func TestFilesAndPackagesAreSmall(t *testing.T) {
	_, all := sources(t)
	packages := map[string]int{}
	for _, s := range all {
		n, most := bytes.Count(s.text, []byte("\n")), mostFile
		if s.test {
			most = mostTest
		} else {
			packages[s.pkg] += n
		}
		if n > most {
			t.Errorf("%s has %d lines, more than %d", s.path, n, most)
		}
	}
	for pkg, n := range packages {
		if n > mostPackage {
			t.Errorf("package %s has %d lines without its tests, more than %d", pkg, n, mostPackage)
		}
	}
}
