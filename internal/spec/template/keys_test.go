package template

import (
	"strings"
	"testing"
)

// TestKeys: what a template keeps for itself is no key of its file, and is not offered as one.
func TestKeys(t *testing.T) {
	for _, key := range []string{"-", "", "dir", "zzz"} {
		_, err := Parse("/etc/berth/templates/job.yaml", []byte(`"`+key+`": x`+"\nnode:\n  image: host\n  command: [/bin/true]\n"))
		if err == nil || !strings.Contains(err.Error(), "unknown key; ") || strings.Contains(err.Error(), "-,") || strings.Contains(err.Error(), ", ,") || strings.HasSuffix(err.Error(), ", ") {
			t.Errorf("%q: %v", key, err)
		}
	}
}
