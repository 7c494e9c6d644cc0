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

// TestKept: what another program does to a drop-in is seen before systemd reads it.
func TestKept(t *testing.T) {
	dir := t.TempDir()
	s := &Set{Unit: "a.service"}
	path := DropIn(dir, s.Unit, "CPUWeight")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"":                                    path + " is gone, and with it the value at the next start of systemd, or daemon-reload",
		"# made\n[Service]\nCPUWeight=1000\n": "",
		"[Service]\nCPUWeight=5\nCPUWeight=1000\n":      "",
		"[Service]\nCPUWeight=1000\nCPUWeight=5\n":      path + ` has "5", which holds from the next start of systemd, or daemon-reload`,
		"[Service]\n#CPUWeight=1000\nCPUWeights=1000\n": path + ` has "", which holds from the next start of systemd, or daemon-reload`,
	} {
		err := os.RemoveAll(path)
		if text != "" {
			err = errors.Join(err, os.WriteFile(path, []byte(text), 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.Kept(dir, Property{Name: "CPUWeight", Value: "1000"}); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
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

// TestLookTransient: whether a unit is transient is asked for.
func TestLookTransient(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, transient := range []string{"yes", "no"} {
		text := "#!/bin/sh\ncase $2 in *,Transient,*) echo Transient=" + transient + ";; esac\necho Id=a.scope\necho LoadState=loaded\n"
		if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		if u, err := Look(t.Context(), "a.scope", "CPUWeight"); err != nil || u.Transient != (transient == "yes") {
			t.Errorf("%s: %+v, %v", transient, u, err)
		}
	}
}
