package control

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// shown is the output of scontrol 22.05.8, shortened.
const shown = `NodeName=st01-01 CoresPerSocket=1
   CPUAlloc=0 CPUEfctv=1 CPUTot=1 CPULoad=N/A
   NodeAddr=st01-01 NodeHostName=st01-01
   State=DOWN*+CLOUD+POWERED_DOWN+NOT_RESPONDING ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Reason=berth: there is no image x; [really] State=IDLE [slurm@2026-11-26T02:40:48]

NodeName=st01-02 Arch=x86_64 CoresPerSocket=1
   State=ALLOCATED+CLOUD ThreadsPerCore=1
   Comment=NodeName=evil State=DOWN
`

func TestNodes(t *testing.T) {
	want := []Node{
		{
			Name: "st01-01", Address: "st01-01", State: []string{"DOWN", "CLOUD", "POWERED_DOWN", "NOT_RESPONDING"}, Reason: "berth: there is no image x; [really] State=IDLE",
			Since: time.Date(2026, 11, 26, 2, 40, 48, 0, time.Local),
		},
		{Name: "st01-02", State: []string{"ALLOCATED", "CLOUD"}},
	}
	got := parseNodes(shown)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !got[0].Failed("berth: ") || got[0].Failed("Not responding") || got[1].Failed("") {
		t.Error("which of them failed is wrong")
	}
}

func TestPlain(t *testing.T) {
	if got := plain("a \"b\"\nc'd'\x00"); got != "a b cd " {
		t.Errorf("%q", got)
	}
	if got := plain(strings.Repeat("ä", 300)); len(got) > longestReason || !strings.HasSuffix(got, "ä") {
		t.Errorf("%d bytes, %q", len(got), got[len(got)-3:])
	}
}
