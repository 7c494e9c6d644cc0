package systemd

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBack(t *testing.T) {
	tests := []struct {
		name string
		p    Property
		want []string
	}{
		{"never set", Property{Name: "CPUWeight", Was: "[not set]"}, []string{"CPUWeight="}},
		{"a value", Property{Name: "CPUWeight", Was: "300"}, []string{"CPUWeight=300"}},
		{"no memory", Property{Name: "MemoryLow", Was: "0"}, []string{"MemoryLow=0"}},
		{"an empty list", Property{Name: "IODeviceWeight", Was: ""}, []string{"IODeviceWeight="}},
		{"a list", Property{Name: "IODeviceWeight", Was: "/dev/sda 200\n/dev/sdb 300"}, []string{
			"IODeviceWeight=", "IODeviceWeight=/dev/sda 200", "IODeviceWeight=/dev/sdb 300",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.p.back()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestHolds(t *testing.T) {
	for _, tt := range []struct {
		value, got string
		want       bool
	}{
		{"1000", "1000", true},
		{"1000", "[not set]", false},
		{"1000", "11000", false},
		{"/dev/sdb 300", "/dev/sda 200\n/dev/sdb 300", true},
	} {
		if p := (Property{Value: tt.value}); p.Holds(tt.got) != tt.want {
			t.Errorf("%q of %q: %v", tt.got, tt.value, !tt.want)
		}
	}
}

// TestSyncFiles: drop-ins that are there are synced; those that are not, and their folders, are no error.
func TestSyncFiles(t *testing.T) {
	dir := t.TempDir()
	s := &Set{Unit: "a.service", Properties: []Property{{Name: "CPUWeight"}, {Name: "IOWeight"}}}
	path := DropIn(dir, s.Unit, "CPUWeight")
	for what, act := range map[string]func() error{
		"nothing is there": func() error { return nil },
		"one is there": func() error {
			return errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600))
		},
		"no folder": func() error { return os.RemoveAll(dir) },
	} {
		if err := errors.Join(act(), s.syncFiles(dir)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}
