package host_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/txtar"
	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// archived unpacks testdata/NAME.txtar: the /proc, /sys, /etc and /boot of a host.
func archived(t *testing.T, name string) host.Host {
	t.Helper()
	dir := t.TempDir()
	a, err := txtar.ParseFile(filepath.Join("testdata", name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	if err := txtar.Write(a, dir); err != nil {
		t.Fatal(err)
	}
	return host.Host{
		Proc: filepath.Join(dir, "proc"), Sys: filepath.Join(dir, "sys"),
		Etc: filepath.Join(dir, "etc"), Boot: filepath.Join(dir, "boot"), Run: filepath.Join(dir, "run"), Usr: filepath.Join(dir, "usr"),
	}
}

// worked returns the results of Try on a host where everything works.
func worked() host.Tried {
	return host.Tried{
		Lib:   "/var/lib/berth",
		Calls: map[string]error{"openat2": nil, "pidfd_open": nil, "clone3": nil},
		Links: map[string]error{"bridge": nil, "veth": nil, "macvlan": nil},
		Tools: map[string]string{"fio": "/usr/bin/fio", "iperf3": "/usr/bin/iperf3", "mkfs.ext4": "/usr/sbin/mkfs.ext4"},
		Space: host.Space{Free: 57 << 30, Total: 100 << 30, FreeInodes: 5e6, Inodes: 6e6},
		Folders: []host.Folder{
			{Path: "/var/lib/berth", Mode: 0o700, Closed: 0o077}, {Path: "/run/berth", Closed: 0o022, Err: fs.ErrNotExist},
		},
		IdmapFS: []host.IdmapTry{{Type: "ext4", At: "/"}, {Type: "tmpfs", At: "/dev/shm"}},
		Runtimes: []host.Runtime{
			{Name: "runc", Path: "/usr/sbin/runc", Version: "1.1.5", Start: 25 * time.Millisecond},
			{Name: "crun", Path: "/usr/bin/crun", Version: "1.8.1", Start: 15 * time.Millisecond},
		},
	}
}

// failed returns the results of Try on a host where almost nothing works.
func failed() host.Tried {
	return host.Tried{
		Lib:     "/var/lib/berth",
		Calls:   map[string]error{"openat2": unix.ENOSYS, "pidfd_open": nil, "clone3": unix.EPERM},
		Links:   map[string]error{"bridge": unix.EOPNOTSUPP, "veth": host.ErrNotTried, "macvlan": unix.EOPNOTSUPP},
		Shaping: map[string]error{"htb": unix.EINVAL, "tbf": unix.ENOENT, "ifb": unix.EOPNOTSUPP, "mirred": unix.EPERM},
		Space:   host.Space{Free: 1 << 29, Total: 100 << 30},
		Folders: []host.Folder{
			{Path: "/var/lib/berth", Mode: 0o755, Closed: 0o077}, {Path: "/run/berth", Mode: 0o777, Closed: 0o022, UID: 1000},
		},
		IdmapFS: []host.IdmapTry{{Type: "fuse.sshfs", At: "/srv/far", Err: errors.New("no answer")}, {Type: "nfs4", At: "/home", Err: refuse.Cannotf("", "no")}},
		Idmap:   refuse.Cannotf("put it on ext4", "the file system nfs of /var/lib/berth cannot be idmapped: %w", unix.EINVAL),
		Runtimes: []host.Runtime{
			{Name: "runc", Path: "/usr/bin/runc", Version: "1.0.0", Err: errors.New("container_linux.go: no user namespaces")},
			{Name: "crun", Path: "/usr/bin/crun", Version: "1.4", Escapes: []string{"CVE-2024-21626"}, Err: nil, Start: time.Millisecond},
			{Name: "youki"},
		},
	}
}

func TestDoctor(t *testing.T) {
	tests := []struct {
		name  string
		tried host.Tried
		exit  refuse.Kind
	}{
		{"v1", worked(), 0},
		{"v2", worked(), 0},
		{"bad", failed(), refuse.Cannot},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := archived(t, tt.name)
			checks := host.Doctor(h, tt.tried)
			if got := refuse.KindOf(host.Refusal(checks)); got != tt.exit {
				t.Errorf("exit code %d, want %d: %v", got, tt.exit, host.Refusal(checks))
			}
			for form, print := range map[string]func(io.Writer, []host.Check) error{"text": host.Text, "brief": host.Brief} {
				var text bytes.Buffer
				if err := print(&text, checks); err != nil {
					t.Fatal(err)
				}
				for line := range strings.Lines(text.String()) {
					if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
						t.Errorf("%d columns: %s", n, line)
					}
				}
				testkit.Golden(t, filepath.Join("testdata", tt.name+"."+form), text.String())
			}
		})
	}
}

func TestDoctorJSON(t *testing.T) {
	b, err := json.MarshalIndent(host.Doctor(archived(t, "v1"), worked())[:2], "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, "testdata/v1.json", string(b)+"\n")
}

func TestFactsOfArchives(t *testing.T) {
	for _, name := range []string{"v1", "v2", "bad"} {
		t.Run(name, func(t *testing.T) {
			f, err := archived(t, name).Facts()
			if err != nil {
				t.Fatal(err)
			}
			b, err := json.MarshalIndent(f, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			testkit.Golden(t, filepath.Join("testdata", name+".facts.json"), string(b)+"\n")
		})
	}
}

// TestDoctorOfNothing checks that Doctor reports faults, and does not panic, if /proc and /sys are empty.
func TestDoctorOfNothing(t *testing.T) {
	dir := t.TempDir()
	checks := host.Doctor(host.Host{Proc: dir, Sys: dir, Etc: dir, Boot: dir, Run: dir, Usr: dir}, host.Tried{})
	if len(host.Missing(checks)) < 5 {
		t.Errorf("an empty host lacks only %v", host.Missing(checks))
	}
}
