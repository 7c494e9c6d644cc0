package mac

import (
	"encoding/json"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

func TestParse(t *testing.T) {
	for _, text := range []string{"", "auto", "02:00:5e:10:00", "02:00:5e:10:00:01:02:03", "02:00:5e:10:00:0g"} {
		if a, err := Parse(text); err == nil {
			t.Errorf("%q is %s", text, a)
		}
	}
	if a, err := Parse("02-00-5E-10-00-01"); err != nil || a != Must("02:00:5e:10:00:01") || a.String() != "02:00:5e:10:00:01" {
		t.Errorf("%s, %v", a, err)
	}
}

func TestCheck(t *testing.T) {
	for text, want := range map[string]string{
		"02:00:5e:10:00:01": "",
		"00:00:00:00:00:00": "is no address",
		"03:00:5e:10:00:01": "is a multicast address: the first byte must be even",
		"ff:ff:ff:ff:ff:ff": "is a multicast address: the first byte must be even",
	} {
		got := ""
		if err := Must(text).Check(); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	if (Address{}).Check() == nil {
		t.Error("no address is one")
	}
}

// TestText checks that addresses of all lengths survive JSON, and that no address is not 00:00:00:00:00:00.
func TestText(t *testing.T) {
	type doc struct {
		MAC   Address            `json:"mac"`
		Perm  Address            `json:"perm,omitzero"`
		Owner map[Address]string `json:"owner,omitempty"`
	}
	infiniband := "80:00:02:08:fe:80:00:00:00:00:00:00:e4:1d:2d:03:00:e7:0f:f6"
	for _, text := range []string{
		`{"mac":""}`,
		`{"mac":"00:00:00:00:00:00"}`,
		`{"mac":"02:00:5e:10:00:01","perm":"` + infiniband + `","owner":{"02:00:5e:10:00:01":"link eth0"}}`,
	} {
		var d doc
		if err := json.Unmarshal([]byte(text), &d); err != nil {
			t.Fatal(err)
		}
		if back, err := json.Marshal(d); err != nil || string(back) != text {
			t.Errorf("%s became %s, %v", text, back, err)
		}
	}
	var d doc
	if err := json.Unmarshal([]byte(`{"mac":"auto"}`), &d); err == nil {
		t.Errorf("%+v", d)
	}
	if (Address{}) == Zeros || !(Address{}).IsZero() || Zeros.IsZero() {
		t.Error("no address and 00:00:00:00:00:00 are one")
	}
}

func TestNumbersAndDerived(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64Range(0, 1<<48-1).Draw(t, "n")
		if got := FromNumber(n).Number(); got != n {
			t.Fatalf("%d became %d", n, got)
		}
		a := Derive(rapid.String().Draw(t, "text"))
		if err := a.Check(); err != nil || a.HardwareAddr()[0]&2 == 0 {
			t.Fatalf("%s: %v", a, err)
		}
	})
}

// TestLinkLocal: the addresses that a kernel makes of a MAC, under whatever prefix, have the link-local one for their sibling; others have none.
func TestLinkLocal(t *testing.T) {
	own := Must("02:00:5e:10:00:01").LinkLocal()
	if own != netip.MustParseAddr("fe80::5eff:fe10:1") {
		t.Errorf("link-local address %s", own)
	}
	for text, want := range map[string]netip.Addr{
		"2001:db8:1:2:0:5eff:fe10:1": own, "fe80::5eff:fe10:1": own, "2001:db8::1": {}, "2001:db8::ff:fe00": {}, "192.0.2.1": {}, "::ffff:192.0.2.1": {},
	} {
		if got := Sibling(netip.MustParseAddr(text)); got != want {
			t.Errorf("sibling of %s: %s, want %s", text, got, want)
		}
	}
}
