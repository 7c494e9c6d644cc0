package template

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/sys/refuse"
)

// TestNumbered: the number at the end of a node's name is added to its addresses, within their networks.
func TestNumbered(t *testing.T) {
	j := parsed(t, "numbered: true\nnode:\n  image: host\n  command: [/bin/true]\n  network:\n"+
		"    - {parent: br0, address: [192.0.2.250/23, \"2001:db8::ff/64\"], gateway: 192.0.2.1, reserved: true}\n    - {parent: br1, dhcp: true}\n")
	for name, want := range map[string]string{
		"st01-01":  "192.0.2.251/23 2001:db8::100/64",
		"st01-9":   "192.0.3.3/23 2001:db8::108/64",
		"st01-001": "192.0.2.251/23 2001:db8::100/64",
	} {
		n, err := j.Make("slurm", name, nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, strings.Join(n.Network[0].Address, " ")); diff != "" || !n.Network[0].Reserved {
			t.Errorf("%s: %s", name, diff)
		}
	}
	for name, want := range map[string]string{
		"st01":              `"st01" does not end in '-' and a number`,
		"42":                `"42" does not end in '-' and a number`,
		"st01-x":            "does not end in '-' and a number",
		"st01-262":          "192.0.2.250/23 and 262 is not in the network",
		"st01-261":          "it is the network's broadcast address",
		"st01-4294967295":   "is not in the network",
		"st01-429496729600": "does not end in '-' and a number",
	} {
		if _, err := j.Make("slurm", name, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, not %s", name, err, want)
		}
	}
}

// TestHighest: nobody gets an address of the network above those that the template has for its nodes, as its file server's.
func TestHighest(t *testing.T) {
	const network = "node:\n  image: host\n  command: [/bin/true]\n  network: [{parent: br0, address: [192.0.2.20/24], reserved: true}]\n"
	j := parsed(t, "numbered: true\nhighest: 40\n"+network)
	n, err := j.Make("bob", "job-40", nil)
	if err != nil || n.Network[0].Address[0] != "192.0.2.60/24" {
		t.Errorf("the highest number: %+v, %v", n, err)
	}
	for _, name := range []string{"job-41", "job-041", "job-180", "job-4294967295"} {
		if _, err := j.Make("bob", name, nil); refuse.KindOf(err) != refuse.Invalid || !strings.Contains(err.Error(), "the highest number is 40") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, wrong := range []string{"highest: 40\n", "numbered: true\nhighest: -1\n"} {
		if _, err := Parse("/etc/berth/templates/job.yaml", []byte(wrong+network)); err == nil || !strings.Contains(err.Error(), "highest") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}
