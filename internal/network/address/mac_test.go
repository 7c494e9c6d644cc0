package address

import (
	"testing"

	"pgregory.net/rapid"
)

func TestDeriveMACNeverChanges(t *testing.T) {
	for _, tt := range []struct {
		site, node, ifname string
		attempt            int
		want               string
	}{
		{"3f1c", "wn-001", "eth0", 0, "ee:02:08:45:2b:35"},
		{"3f1c", "wn-001", "eth0", 1, "ee:40:5c:79:c6:11"},
		{"3f1c", "wn-002", "eth0", 0, "c6:1d:4f:69:4f:c2"},
	} {
		if got := DeriveMAC(tt.site, tt.node, tt.ifname, tt.attempt).String(); got != tt.want {
			t.Errorf("%s %s %s %d: %s, not %s: every node of every site would change its MAC", tt.site, tt.node, tt.ifname, tt.attempt, got, tt.want)
		}
	}
}

func TestDeriveMACIsLocalUnicast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		derived := DeriveMAC(rapid.String().Draw(t, "site"), rapid.String().Draw(t, "node"), rapid.String().Draw(t, "if"), rapid.IntRange(0, attempts).Draw(t, "attempt"))
		if err := derived.Check(); err != nil || derived.HardwareAddr()[0]&2 == 0 {
			t.Fatalf("%s is not locally administered unicast", derived)
		}
	})
}
