package instance

import (
	"os/exec"
	"reflect"
	"testing"
	"time"

	"berth/internal/sys/refuse"
)

func TestParse(t *testing.T) {
	got, err := parse("17|RUNNING|None|st01-03|2026-11-26T18:02:00|ann\n18|PENDING|Resources||N/A|ann\n19|CONFIGURING|None|st01-04|2026-11-26T18:02:00|b|ob\n" +
		"20|TIMEOUT|TimeLimit|st01-05|Unknown|bob\n21_[1-3]|PENDING|None||N/A|eve\n22+0|PENDING|JobHeldUser||N/A|eve\n22+1|PENDING|JobHeldUser||N/A|eve\n")
	if err != nil {
		t.Fatal(err)
	}
	want := []Instance{
		{Job: 17, User: "ann", State: "RUNNING", Node: "st01-03", Until: time.Date(2026, 11, 26, 18, 2, 0, 0, time.Local)},
		{Job: 18, User: "ann", State: "PENDING", Reason: "Resources"},
		{Job: 19, User: "b|ob", State: "CONFIGURING", Node: "st01-04"},
		{Job: 20, User: "bob", State: "TIMEOUT", Node: "st01-05"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
	for i, waits := range []bool{false, true, true, false} {
		if got[i].Waits() != waits {
			t.Errorf("instance %d is %s: waits %v", got[i].Job, got[i].State, !waits)
		}
	}
	if none, err := parse(""); err != nil || none == nil || len(none) != 0 {
		t.Errorf("nothing: %#v, %v", none, err) // [] as JSON
	}
	for _, wrong := range []string{"slurm_load_jobs error\n", "x|RUNNING|None|n|N/A|ann\n"} {
		if got, err := parse(wrong); err == nil {
			t.Errorf("%q: %+v", wrong, got)
		}
	}
}

func TestNoSlurm(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := List(t.Context(), false); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("without squeue: %v", err)
	}
	if _, err := Submit(t.Context(), Request{Time: time.Minute}); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("without sbatch: %v", err)
	}
}

// TestJob: the job's script is one that a POSIX shell reads.
func TestJob(t *testing.T) {
	if out, err := exec.Command("/bin/sh", "-n", "job.sh").CombinedOutput(); err != nil || len(job) == 0 {
		t.Errorf("%v: %s", err, out)
	}
}
