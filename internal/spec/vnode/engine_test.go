package vnode

import "testing"

func TestParseModel(t *testing.T) {
	const full = "rbps=1 rseqiops=2 rrandiops=3 wbps=4 wseqiops=5 wrandiops=6"
	for in, want := range map[string]string{
		full: full,
		"  wrandiops=6 rbps=1 rseqiops=2 rrandiops=3\twbps=4 wseqiops=5 ": full,
		"": "", "rbps=1": "", full + " rbps=1": "", full + " x=1": "", "rbps=0 rseqiops=2 rrandiops=3 wbps=4 wseqiops=5 wrandiops=6": "",
		"rbps=1k rseqiops=2 rrandiops=3 wbps=4 wseqiops=5 wrandiops=6": "", "rbps": "",
	} {
		got, err := ParseModel(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("ParseModel(%q) = %q, %v", in, got, err)
		}
	}
}

func TestEngines(t *testing.T) {
	for _, tt := range []struct {
		io   IO
		want string
	}{
		{IO{Name: "d", Device: "/dev/sda", Engine: BFQ}, ""},
		{IO{Name: "d", Device: "/dev/sda", Engine: BFQStrict}, ""},
		{IO{Name: "d", Device: "/dev/sda", Engine: IOCost}, ""},
		{IO{Name: "d", Device: "/dev/sda", Engine: "cfq"}, `"cfq" is not allowed: bfq, bfq-strict or iocost`},
		{IO{Name: "d", Filesystem: "eos", Engine: BFQ}, "not possible with filesystem: an engine works on a disk of this host"},
		{IO{Name: "d", Device: "/dev/sda", Model: "rbps=1 rseqiops=2 rrandiops=3 wbps=4 wseqiops=5 wrandiops=6"}, "only with engine: iocost"},
		{IO{Name: "d", Device: "/dev/sda", Engine: IOCost, Model: "rbps=1"}, "rseqiops is missing: berth doctor --calibrate DEVICE prints a model"},
	} {
		n := &Node{Name: "n", Image: Image{Kind: HostImage}, Command: []string{"true"}, IO: []IO{tt.io}, Network: []Network{{Name: "eth0", Mode: Bridge, Address: []string{"192.0.2.2/24"}}}}
		Defaults(n)
		got := ""
		for _, p := range Validate(n) {
			got += p.Msg
		}
		if got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.io, got, tt.want)
		}
	}
}
