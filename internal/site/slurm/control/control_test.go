package control

import (
	"context"
	"errors"
	"os"
	"path/filepath"
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

// TestLate: of a slurmctld that does not answer the error says so, with what scontrol said, and not how it was ended.
func TestLate(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "scontrol"), []byte("#!/bin/sh\necho no controller >&2; exec sleep 600\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	const says = "scontrol update NodeName=st01-01 State=IDLE: slurmctld did not answer in time, and scontrol says: no controller; see systemctl status slurmctld on its host: "
	if err := Open().Idle(ctx, []string{"st01-01"}); !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), says) {
		t.Error(err)
	}
}
