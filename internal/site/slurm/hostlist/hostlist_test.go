package hostlist

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestRefused(t *testing.T) {
	for _, list := range []string{
		",", "a,", ",a", "a,,b", "a[1", "a]1", "a[]", "a[3-1]", "a[-1]", "a[1-2-3]", "a[1-3:2]", "a[0x1-3]", "a b", "a[ 1-2]", "a[1-2]5", "a;b", "a$(id)", "a\nb", "a/b",
		"ä", "a[1-65534]", "a[1-300][1-300]", "a[1-9999999999]", "a[1-2", "[[1]]",
	} {
		if names, err := Expand(list); err == nil {
			t.Errorf("%q is taken, as %q", list, names)
		}
	}
}

// scontrol returns what Slurm's own program makes of a list: "show hostnames" or "show hostlist".
func scontrol(t *testing.T) func(what, list string) string {
	t.Helper()
	program, err := exec.LookPath("scontrol")
	if err != nil {
		t.Skip("scontrol is not installed: apt-get install slurm-client")
	}
	conf := filepath.Join(t.TempDir(), "slurm.conf") // it wants one, and asks nobody
	if err := os.WriteFile(conf, []byte("ClusterName=x\nSlurmctldHost=x\nNodeName=a\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return func(what, list string) string {
		cmd := exec.Command(program, "show", what, list)
		cmd.Env = append(os.Environ(), "SLURM_CONF="+conf)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("scontrol show %s %s: %v: %s", what, list, err, out)
		}
		return strings.TrimSpace(string(out))
	}
}

// TestAsSlurm: Slurm makes the same of each list, and of the names.
func TestAsSlurm(t *testing.T) {
	ask := scontrol(t)
	for _, list := range []string{
		"a", "st01-03", "st01-[01-03,07],st02-01", "a[1-3,07]", "a[09-11]", "a[099-101]", "a[1-3]b[2-3]", "a[1-2]-x[01-02],c", "a[001-1]", "a[1-01]", "a[9-010]",
		"[1-2]", "a1-a3", "a[5-05]", "a[1,1]", "a.b-[1-2]", "a_1", "st04-[01-99,100-120]", "a123456789012",
	} {
		names, err := Expand(list)
		if err != nil {
			t.Errorf("%s: %v", list, err)
			continue
		}
		if diff := cmp.Diff(strings.Fields(ask("hostnames", list)), names); diff != "" {
			t.Errorf("%s:\n%s", list, diff)
		}
	}
	for _, names := range []string{
		"a1,a2,a3", "a01,a02,a3", "a9,a10", "a09,a10", "a1-1,a1-2", "st01-03,st01-04,st02-01", "a,b", "a099,a100", "a99,a100", "a1,a1", "a3,a1,a2", "a1,b1,a2", "a,a1,a2",
	} {
		got := Compress(strings.Split(names, ","))
		if want := ask("hostlist", names); got != want {
			t.Errorf("%s: %s, and Slurm writes %s", names, got, want)
		}
	}
}

// TestThereAndBack: any names are the same after they were written as a list.
func TestThereAndBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfN(rapid.StringMatching(`[a-c]{1,2}[0-9]?-?[0-9]{0,3}`), 0, 30).Draw(t, "names")
		got, err := Expand(Compress(names))
		if err != nil {
			t.Fatal(err)
		}
		if len(names) != len(got) || len(names) > 0 && !cmp.Equal(names, got) {
			t.Fatalf("%q became %s and %q", names, Compress(names), got)
		}
	})
}

func FuzzExpand(f *testing.F) {
	for _, list := range []string{"a[1-3,07],b", "a[1-2]b[3]", "[0-1", "a[000000001-2]"} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		names, err := Expand(list)
		if err != nil {
			return
		}
		if len(names) > most {
			t.Fatalf("%d names", len(names))
		}
		for _, name := range names {
			if name == "" || strings.ContainsAny(name, " ,[]/\x00\n") {
				t.Fatalf("%q has %q", list, name)
			}
		}
		again, err := Expand(Compress(names))
		if err != nil || len(names) > 0 && !cmp.Equal(names, again) {
			t.Fatalf("%q: %q, written %s, read %q: %v", list, names, Compress(names), again, err)
		}
	})
}
