package model

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"

	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/test/loop"
	"berth/test/testkit"
)

// TestMeasure measures the disk of a folder and checks that no file is left.
func TestMeasure(t *testing.T) {
	testkit.NeedsRoot(t)
	if _, err := exec.LookPath("fio"); err != nil {
		t.Skip("needs fio")
	}
	dir := testkit.Dir(t, "/var/tmp") // t.TempDir may lie in memory
	var said []string
	m, err := Measure(t.Context(), Options{
		Path: dir, Time: 100 * time.Millisecond, Size: 64 << 20, Say: func(s string) { said = append(said, s) },
	})
	if refuse.KindOf(err) == refuse.Cannot {
		t.Skip("no disk with room under /var/tmp: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(m.Numbers)); len(got) != 6 || len(said) != 7 || m.Bytes != 64<<20 {
		t.Errorf("measured %v of %d bytes, said %q", got, m.Bytes, said)
	}
	if s, err := vnode.ParseModel(m.Spec()); err != nil || s != m.Spec() {
		t.Errorf("a spec takes %q as %q, %v", m.Spec(), s, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	m := &Model{Number: "8:0", Numbers: map[string]int64{"rbps": 1, "rseqiops": 2, "rrandiops": 3, "wbps": 4, "wseqiops": 5, "wrandiops": 6}}
	if err := m.Write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "io.cost.model"))
	if want := "8:0 ctrl=user model=linear rbps=1 rseqiops=2 rrandiops=3 wbps=4 wseqiops=5 wrandiops=6"; err != nil || string(got) != want {
		t.Errorf("wrote %q, %v", got, err)
	}
	if err := m.Write(filepath.Join(dir, "none")); err == nil {
		t.Error("wrote into a folder that is not there")
	}
}

func TestParse(t *testing.T) {
	for name, tt := range map[string]struct {
		out  string
		key  string
		want int64
		err  string
	}{
		"after text": {"note\n" + `{"jobs":[{"mixed":{"iops":5,"bw_bytes":700,"total_ios":9}}]}`, "rbps", 700, ""},
		"operations": {`{"jobs":[{"mixed":{"iops":5.9,"bw_bytes":700,"total_ios":9}}]}`, "wseqiops", 5, ""},
		"nothing":    {`{"jobs":[{"mixed":{"iops":0}}]}`, "wseqiops", 0, "not one request"},
		"too little": {`{"jobs":[{"mixed":{"iops":0.5,"total_ios":1}}]}`, "wseqiops", 0, "no request"},
		"failed":     {`{"jobs":[{"error":5}]}`, "rbps", 0, "errno 5"},
		"no jobs":    {`{"jobs":[]}`, "rbps", 0, "0 jobs"},
		"no JSON":    {`fio: no such file`, "rbps", 0, "no JSON"},
	} {
		got, err := parse([]byte(tt.out), shape{key: tt.key})
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %d, %v", name, got, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	if _, err := exec.LookPath("fio"); err != nil {
		t.Skip("needs fio")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		o    Options
		kind refuse.Kind
		want string
	}{
		"nothing there":    {Options{Path: file + "x"}, refuse.NotFound, "there is no device or folder"},
		"a file":           {Options{Path: file}, refuse.Invalid, "neither a block device nor a folder"},
		"destroy a folder": {Options{Path: dir, Destroy: true}, refuse.Invalid, "takes a device"},
		"no disk":          {Options{Path: "/proc"}, refuse.Cannot, "name the disk with device"},
	} {
		_, err := Measure(t.Context(), tt.o)
		if refuse.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDevice: a device that is mounted nowhere is measured only by who gives its data up; one that is too small, or in use, is not.
func TestDevice(t *testing.T) {
	testkit.NeedsRoot(t)
	dev := loop.ForTest(t, least)
	if _, err := find(Options{Path: dev}); refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), dev+" is mounted nowhere") {
		t.Errorf("to keep its data: %v", err)
	}
	all, err := find(Options{Path: dev, Destroy: true, Size: 10 * least})
	testkit.Must(t, err)
	if all.path != dev || all.size != least {
		t.Errorf("found %+v", all)
	}
	if _, err := find(Options{Path: dev, Destroy: true, Size: least}); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("while it is measured: %v", err)
	}
	testkit.Must(t, all.file.Close())
	if _, err := find(Options{Path: loop.ForTest(t, least/2), Destroy: true, Size: least}); refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "is too small") {
		t.Errorf("of half a size: %v", err)
	}
	for options, want := range map[string]bool{"ro": true, "ro,relatime": true, "rw,relatime": false, "rota": false} {
		if readOnly(&mountinfo.Info{Options: options}) != want {
			t.Errorf("%s: read-only is not %v", options, want)
		}
	}
}
