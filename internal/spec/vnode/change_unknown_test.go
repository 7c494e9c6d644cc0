package vnode

import (
	"strings"
	"testing"
)

func TestUnknownKey(t *testing.T) {
	t.Parallel()
	n := &Node{Name: "w", IO: []IO{{Name: "data"}}, Network: []Network{{Name: "eth0", Mode: Bridge}}}
	for key, want := range map[string]string{
		"cpu.mx":            "cpu.mx: node w has no such key; did you mean cpu.max? it has cpu.weight, ",
		"memory.limit":      "memory.limit: node w has no such key; it has cpu.weight, ",
		"io.data.read.rat":  "did you mean io.data.read.rate? it has ",
		"io.disk.read.rate": "io.disk.read.rate: node w has no such key, and no io entry disk; it has ",
		"net.eth1.tx":       ", and no net entry eth1; it has ",
		"cpu.maximum":       "did you mean cpu.max? it has ",
		"mem.max":           "did you mean memory.max? it has ",
		"device+":           "did you mean devices+? it has ",
		"hostname":          "hostname: node w has no such key that changes live; change hostname in its spec, then berth apply -f FILE; it has ",
		"mounts":            "change mounts in its spec",
	} {
		err := Change(n, key, "1")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", key, err, want)
			continue
		}
		if !strings.HasSuffix(err.Error(), "restart, stop.grace, io.data.weight, io.data.read.rate, io.data.read.iops, io.data.write.rate, io.data.write.iops, "+
			"net.eth0.tx, net.eth0.rx, devices+, devices-, rlimits.NAME, hugepages.SIZE") {
			t.Errorf("%s: what there is is not named: %v", key, err)
		}
	}
}
