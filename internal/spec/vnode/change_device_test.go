package vnode

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestParseDevice(t *testing.T) {
	const byPath = "/dev/disk/by-path/pci-0000:00:1f.2-ata-1" // the path has colons
	for text, want := range map[string]Device{
		"/dev/sdb":                    {Path: "/dev/sdb"},
		"/dev/sdb:r":                  {Path: "/dev/sdb", Access: "r"},
		"/dev/sdb:/dev/data":          {Path: "/dev/sdb", As: "/dev/data"},
		"/dev/sdb:/dev/data:rwm":      {Path: "/dev/sdb", As: "/dev/data", Access: "rwm"},
		"/dev/mem:unsafe":             {Path: "/dev/mem", Unsafe: true},
		"/dev/mem:/dev/m:r:unsafe":    {Path: "/dev/mem", As: "/dev/m", Access: "r", Unsafe: true},
		byPath:                        {Path: byPath},
		byPath + ":/dev/sda:rw":       {Path: byPath, As: "/dev/sda", Access: "rw"},
		"/dev/disk/by-path/*-sas-*:r": {Path: "/dev/disk/by-path/*-sas-*", Access: "r"},
		"/dev/x:":                     {Path: "/dev/x:"},
	} {
		got, err := ParseDevice(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
	for _, text := range []string{"", "sdb", ":/dev/x", "unsafe", ":r"} {
		if d, err := ParseDevice(text); err == nil {
			t.Errorf("%q is %+v", text, d)
		}
	}
}

func TestDeviceText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := Device{
			Path:   "/dev/" + rapid.StringMatching(`[a-z*]{1,4}(:[0-9a-f]{1,3}\.[0-9]){0,2}`).Draw(t, "path"),
			As:     rapid.SampledFrom([]string{"", "/dev/x", "/dev/disk/y"}).Draw(t, "as"),
			Access: rapid.SampledFrom([]string{"", "r", "rwm", "wm"}).Draw(t, "access"),
			Unsafe: rapid.Bool().Draw(t, "unsafe"),
		}
		got, err := ParseDevice(d.String())
		if err != nil || got != d {
			t.Fatalf("%s is %+v, %v; want %+v", d, got, err, d)
		}
	})
}

func TestChangeDevices(t *testing.T) {
	n := &Node{Name: "one", Image: Image{Kind: HostImage}, Command: []string{"true"}}
	for _, c := range []struct {
		key, value, want string // want: the devices after the change, or the error
	}{
		{AddDevice, "/dev/loop0", "/dev/loop0"},
		{AddDevice, "/dev/loop1:/dev/data:r", "/dev/loop0 /dev/loop1:/dev/data:r"},
		{AddDevice, "/dev/loop0:r", "devices+: node one has /dev/loop0 already; take it away first: devices-=/dev/loop0"},
		{AddDevice, "loop0", `devices+: "loop0" is not allowed: PATH[:PATH INSIDE][:ACCESS][:unsafe], for example /dev/sdb:/dev/data:r`},
		{TakeDevice, "/dev/loop0", "/dev/loop1:/dev/data:r"},
		{TakeDevice, "/dev/loop0", `devices-: "/dev/loop0" is not among the devices of node one: /dev/loop1`},
		{TakeDevice, "/dev/loop1", ""},
		{TakeDevice, "/dev/loop1", `devices-: "/dev/loop1" is not among the devices of node one: none`},
	} {
		before := n.Devices
		err := Change(n, c.key, c.value)
		var all []string
		for _, d := range n.Devices {
			all = append(all, d.String())
		}
		got := strings.Join(all, " ")
		if err != nil {
			got = err.Error()
			if !cmp.Equal(before, n.Devices) {
				t.Errorf("%s=%s failed and changed the devices to %v", c.key, c.value, n.Devices)
			}
		}
		if got != c.want {
			t.Errorf("%s=%s: %q, want %q", c.key, c.value, got, c.want)
		}
	}
	n.Devices = []Device{{Path: "/dev/sd*", Unsafe: true}}
	if p := Validate(n); len(p) != 1 || !strings.Contains(p[0].String(), "unsafe is given by its own name") {
		t.Errorf("a pattern that is unsafe: %v", p)
	}
}
