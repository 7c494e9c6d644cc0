package address

import (
	"net/netip"
	"strings"
	"testing"

	"berth/internal/sys/mac"
)

// FuzzClaims feeds frames: none may crash the parser, and a frame that does not contain the address is no answer.
func FuzzClaims(f *testing.F) {
	q := &question{mac: mac.Must("02:00:00:00:00:01"), addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}
	other := &question{mac: mac.Must("02:00:00:00:00:02")}
	for _, a := range q.addrs {
		probe := other.frame(a)
		if _, who := q.claims(probe); who != other.mac {
			f.Errorf("another's probe for %s: %v", a, who)
		}
		if _, who := q.claims(q.frame(a)); !who.IsZero() {
			f.Errorf("its own probe for %s: %v", a, who)
		}
		f.Add(probe)
		f.Add(probe[:len(probe)-20])
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		a, who := q.claims(frame)
		if !who.IsZero() && !strings.Contains(string(frame), string(a.AsSlice())) {
			t.Errorf("%s by %s is not in the frame", a, who)
		}
	})
}
