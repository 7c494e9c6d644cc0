package hostapi

import (
	"strings"
	"testing"

	"berth/internal/node/records"
	"berth/internal/spec/template"
)

// TestSameRights: a template whose nodes are numbered no more, or from now on, gives the node of a name another address: that is another right.
func TestSameRights(t *testing.T) {
	const node = "node:\n  image: host\n  command: [/bin/true]\n  network: [{parent: br0, address: [192.0.2.20/24], reserved: true}]\n"
	read := func(text string) *template.Template {
		t.Helper()
		one, err := template.Parse("/etc/berth/templates/job.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return one
	}
	plain, numbered, bounded := read(node), read("numbered: true\n"+node), read("numbered: true\nhighest: 40\n"+node)
	for _, tc := range []struct {
		from, to *template.Template
		differ   string
	}{{plain, plain, ""}, {numbered, numbered, ""}, {numbered, bounded, ""}, {plain, numbered, "numbered"}, {bounded, plain, "numbered"}} {
		was, err := tc.from.Make("bob", "job-03", nil)
		if err != nil {
			t.Fatal(err)
		}
		is, err := tc.to.Make("bob", "job-03", nil)
		if err != nil {
			t.Fatal(err)
		}
		err = sameRights(tc.to, is, &records.Stored{Applied: was, Now: was, Rights: tc.from.Rights()})
		if (err != nil) != (tc.differ != "") || err != nil && !strings.Contains(err.Error(), "("+tc.differ+")") {
			t.Errorf("numbered %v, then %v: %v", tc.from.Numbered, tc.to.Numbered, err)
		}
	}
}
