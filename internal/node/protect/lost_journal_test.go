package protect

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/host/group"
	"berth/internal/host/group/grouptest"
	"berth/internal/host/systemd"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

// TestLostJournals: a journal that a power cut has emptied or cut off is not forgotten while something is there that it may have named:
// ls, repair, protect and unprotect say what to do. The others are settled beside it, and one for which nothing is there is forgotten.
func TestLostJournals(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := testkit.Dir(t, "") // a root is passed through by nodes
	v := New(layout.New(filepath.Join(dir, "root")))
	v.control = filepath.Join(dir, "control")
	l, err := v.lock(t.Context()) // makes the folder
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	boot, err := step.BootID()
	if err != nil {
		t.Fatal(err)
	}
	h := grouptest.Host(t)
	there := "/" + grouptest.New(t, h, group.Kinds(), group.Steps)
	head := func(boot string) string {
		return `{"berth":3,"boot":"` + boot + `","node":"x"}` + "\n" + `{"phase":"creating"}` + "\n"
	}
	const known = `{"begin":0,"kind":"systemd.set","step":{"unit":"known.service","properties":[{"name":"CPUWeight","value":"1000"}]}}` + "\n"
	for _, tc := range []struct {
		target target
		text   string
		dropIn string // a property that somebody has set
		lost   string // what is said of it
	}{
		{target{kind: kindUnit, name: "empty.service"}, "", "CPUWeight", "is empty"},
		{target{kind: kindUnit, name: "zero.service"}, "\x00\x00\n\x00", "MemoryLow", "is empty"},
		{target{kind: kindUnit, name: "cut.service"}, head("before"), "IOWeight", "is cut off"},
		{target{kind: kindUnit, name: "begun.service"}, "", "", ""},
		{target{kind: kindUnit, name: "killed.service"}, head(boot), "CPUWeight", ""},
		{target{kind: kindUnit, name: "other.service"}, head("before"), "CPUQuota", ""},
		{target{kind: kindCgroup, name: there}, "", "", "is empty"},
		{target{kind: kindCgroup, name: "/no/such/group"}, "", "", ""},
		{target{kind: kindProcess, name: "4194303"}, "", "", ""},
		{target{kind: kindProcess, name: "4194302"}, head("before"), "", ""},
	} {
		path := tc.target.journal(v)
		write := func(path, text string) {
			t.Helper()
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		write(path, tc.text)
		dropIn := filepath.Join(v.control, tc.target.name+".d", "50-"+tc.dropIn+".conf")
		if tc.dropIn != "" {
			write(dropIn, "[Service]\n")
		}
		all, err := v.All(t.Context())
		if err != nil || len(all) != 1 || (all[0].Damaged != "") != (tc.lost != "") {
			t.Errorf("%s: ls has %+v, %v", path, all, err)
		}
		did, err := v.Repair(t.Context())
		if tc.lost == "" {
			if _, gone := os.Stat(path); err != nil || len(did) != 1 || !os.IsNotExist(gone) {
				t.Errorf("%s: repair: %v, %v, %v", path, did, err, gone)
			}
			continue
		}
		said := func(what string, err error) {
			t.Helper()
			if r, ok := errors.AsType[*refuse.Error](err); !ok || !strings.Contains(r.What, path) || !strings.Contains(r.What, tc.lost) || !strings.Contains(r.Remedy, "rm ") {
				t.Errorf("%s: %s says %v", path, what, err)
			}
			if tc.dropIn != "" && !strings.Contains(err.Error(), dropIn) {
				t.Errorf("%s: %s does not name %s: %v", path, what, dropIn, err)
			}
			if text, err := os.ReadFile(path); err != nil || string(text) != tc.text {
				t.Errorf("%s: after %s it has %q, %v", path, what, text, err)
			}
		}
		if len(did) > 0 {
			t.Errorf("%s: repair did %v", path, did)
		}
		said("repair", err)
		said("protect", v.checkFree(&tc.target))
		_, err = v.Unprotect(t.Context(), tc.target.name)
		said("unprotect", err)
		beside := target{kind: kindUnit, name: "beside.service"}
		write(beside.journal(v), head(boot))
		if did, err := v.Repair(t.Context()); len(did) != 1 || did[0].Name != beside.name || err == nil {
			t.Errorf("%s: beside it was done %v, %v", path, did, err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	dropIn := filepath.Join(v.control, "known.service.d", "50-CPUWeight.conf")
	if err := errors.Join(os.MkdirAll(filepath.Dir(dropIn), 0o755), os.WriteFile(dropIn, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	k := target{kind: kindUnit, name: "known.service"} // what a cut journal names is not lost
	if err := os.WriteFile(k.journal(v), []byte(head("before")+known), 0o600); err != nil {
		t.Fatal(err)
	}
	if j, err := v.journalOf(k); err != nil || len(j.Steps()) != 1 {
		t.Errorf("a step that is named: %v", err)
	}
}

// TestLostSlices: the same of the journal of slices. What they had is not taken to be what systemd says now.
func TestLostSlices(t *testing.T) {
	dir := t.TempDir()
	v := New(layout.New(dir))
	v.control = filepath.Join(dir, "control")
	path := filepath.Join(dir, "slices")
	for _, property := range []string{"MemoryLow", "CPUWeight"} {
		for _, f := range []string{path, systemd.DropIn(v.control, property+".slice", property)} {
			if err := errors.Join(os.MkdirAll(filepath.Dir(f), 0o755), os.WriteFile(f, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, err := v.slicesJournal(path)
	if r, ok := errors.AsType[*refuse.Error](err); !ok || !strings.Contains(r.Remedy, "rm -f "+systemd.DropIn(v.control, "MemoryLow.slice", "MemoryLow")+";") || strings.Contains(r.Remedy, "CPUWeight") {
		t.Errorf("it says %v", err)
	}
	if err := os.RemoveAll(v.control); err != nil {
		t.Fatal(err)
	}
	if j, err := v.slicesJournal(path); err != nil || !j.Empty() {
		t.Errorf("nothing is left, and it says %v", err)
	}
}
