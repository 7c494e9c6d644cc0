package tree

import (
	"path"
	"strings"
	"testing"
)

// readsJSON lists the files that read JSON without package jsonfile, and why no decoder error can reach a user.
var readsJSON = map[string]string{
	"internal/image/record.go": "says in its own words what is wrong with a record",
	"internal/link/dhcp.go":    "a lease that cannot be read is asked for anew",
	"internal/oci/probe.go":    "a choice of the runtime that cannot be read is made anew",
	"internal/oci/words.go":    "a runtime's line that is not JSON is shown as it is",
	"internal/node/set.go":     "copies a node",
}

// TestJSONIsReadInWords checks that all other files read JSON by package jsonfile, because the decoder's own errors name Go types.
func TestJSONIsReadInWords(t *testing.T) {
	_, all := sources(t)
	found := 0
	for _, s := range all {
		if s.test || !strings.HasPrefix(s.pkg, "internal/") || path.Base(s.pkg) == "jsonfile" {
			continue
		}
		text := string(s.text)
		if !strings.Contains(text, "json.Unmarshal(") && !strings.Contains(text, "json.NewDecoder(") {
			continue
		}
		found++
		if !strings.Contains(text, "jsonfile.") && readsJSON[s.path] == "" {
			t.Errorf("%s reads JSON: say by package jsonfile what is wrong with it, or here why nobody sees it", s.path)
		}
	}
	if found < 8 {
		t.Errorf("only %d files read JSON: does the test look for the right words?", found)
	}
}
