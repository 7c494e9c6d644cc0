package security

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"berth/internal/runner/oci"
)

// TestDocumentation checks that each test named in docs/SECURITY.md exists, and that its tables list exactly the capabilities
// that nodes get.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	files, err := exec.Command("find", "../..", "-name", "*_test.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	for file := range strings.FieldsSeq(string(files)) {
		source, err := os.ReadFile(filepath.Clean(file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range declared.FindAllSubmatch(source, -1) {
			tests[string(m[1])] = true
		}
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllSubmatch(text, -1)
	if len(named) < 30 {
		t.Errorf("only %d tests are named", len(named))
	}
	for _, m := range named {
		if !tests[string(m[1])] {
			t.Errorf("there is no %s", m[1])
		}
	}
	_, table, found := strings.Cut(string(text), "## Tried and held")
	table, _, _ = strings.Cut(table, "\n## ")
	rows := 0
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| **") || strings.HasPrefix(line, "| what is tried") {
			continue
		}
		rows++
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 || strings.TrimSpace(cells[1]) == "" || !regexp.MustCompile("`(Test|Fuzz)\\w+`").MatchString(cells[2]) {
			t.Errorf("tried and held: a row without what stops it, or without a test: %s", line)
		}
	}
	if !found || rows < 40 {
		t.Errorf("tried and held: only %d rows", rows)
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("`(CAP_\\w+)`").FindAllSubmatch(text, -1) {
		listed[string(m[1])] = true
	}
	for _, c := range oci.InitCapabilities() {
		if !listed[c.Name] {
			t.Errorf("%s is not listed", c.Name)
		}
		delete(listed, c.Name)
	}
	for name := range listed {
		t.Errorf("%s is listed, and no node has it", name)
	}
}
