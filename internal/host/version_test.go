package host_test

import (
	"testing"

	"berth/internal/host"
)

func TestParseVersion(t *testing.T) {
	tests := []struct {
		release string
		want    host.Version
		ok      bool
	}{
		{"6.18.44-generic", host.Version{Major: 6, Minor: 18, Patch: 44}, true},
		{"6.1.0-28-amd64", host.Version{Major: 6, Minor: 1}, true},
		{"6.12-rc3", host.Version{Major: 6, Minor: 12}, true},
		{"5.14.0-503.el9.x86_64", host.Version{Major: 5, Minor: 14}, true},
		{"", host.Version{}, false},
		{"linux", host.Version{}, false},
		{"6", host.Version{}, false},
	}
	for _, tt := range tests {
		got, err := host.ParseVersion(tt.release)
		if got != tt.want || (err == nil) != tt.ok {
			t.Errorf("ParseVersion(%q) = %v, %v; want %v", tt.release, got, err, tt.want)
		}
	}
}

func TestAtLeast(t *testing.T) {
	v := host.Version{Major: 5, Minor: 19}
	if !v.AtLeast(5, 19) || !v.AtLeast(4, 99) || v.AtLeast(5, 20) || v.AtLeast(6, 0) {
		t.Errorf("AtLeast of %v is wrong", v)
	}
}
