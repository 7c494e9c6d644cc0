package cli

import (
	"bytes"
	"testing"

	"berth/internal/sriov"
)

func TestPrintVFs(t *testing.T) {
	var out bytes.Buffer
	all := []sriov.PF{
		{Name: "enp1s0", PCI: "0000:01:00.0", Driver: "igb", NUMA: -1, Up: true, Carrier: true, Speed: 1000, Total: 7, VFs: []sriov.VF{
			{Index: 0, PCI: "0000:01:10.0", Driver: "igbvf", Owner: "wn-001/eth0", Admin: &sriov.Admin{MAC: "02:00:5e:10:00:01", VLAN: 120, SpoofChk: true}},
			{Index: 1, PCI: "0000:01:10.4", Driver: "igbvf", Link: "enp1s0v1", Admin: &sriov.Admin{MAC: "02:00:5e:10:00:02", Trust: true, MaxTxRate: 100, State: 2}},
			{Index: 2, PCI: "0000:01:11.0"},
		}},
		{Name: "enp2s0", PCI: "0000:02:00.0", Driver: "ice", NUMA: 1, Total: 64},
	}
	if err := printVFs(&out, all); err != nil {
		t.Fatal(err)
	}
	golden(t, "vf-ls.txt", out.String())
	out.Reset()
	if err := printVFs(&out, nil); err != nil || out.String() != "no adapter of this host has SR-IOV\n" {
		t.Errorf("%q %v", out.String(), err)
	}
}
