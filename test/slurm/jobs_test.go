package slurm

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/test/testkit"
)

// TestJobs: jobs have nodes made, run in them as their user, and leave nothing.
func TestJobs(t *testing.T) {
	t.Parallel() // it mostly waits for Slurm
	s := newSite(t, 3)
	const jobs = 6
	submitted, ids := map[string]time.Time{}, []string{}
	for range jobs {
		began := time.Now()
		id := s.submit("date +%s.%N; id -u; hostname; nproc\n")
		submitted[id], ids = began, append(ids, id)
	}
	var cold, warm []time.Duration
	seen := map[string]bool{}
	for _, id := range ids {
		s.completed(id)
		text, err := os.ReadFile(s.path("work/" + id + ".out"))
		testkit.Must(t, err)
		words := strings.Fields(string(text))
		if len(words) != 4 || words[1] != "1500" || !strings.HasPrefix(words[2], "st01-0") {
			t.Fatalf("job %s printed %q", id, text)
		}
		at, err := strconv.ParseFloat(words[0], 64)
		testkit.Must(t, err)
		took := time.Unix(0, int64(at*1e9)).Sub(submitted[id])
		if seen[words[2]] {
			warm = append(warm, took)
		} else {
			cold = append(cold, took)
		}
		seen[words[2]] = true
	}
	s.until("the nodes are removed", func() bool { return len(s.nodes()) == 0 })
	s.until("slurmctld says so", func() bool { return !strings.Contains(s.run("sinfo", "-h", "-N", "-o", "%T"), "powering_down") })
	if down := s.run("sinfo", "-h", "-R"); down != "" {
		t.Errorf("nodes are down: %s", down)
	}
	t.Logf("from submission to the job's first line: on %d new nodes %s, on nodes that were there %s", len(cold), spread(cold), spread(warm))
	t.Logf("Berth's part: resume %s, prolog behind the wait %s, suspend %s", spread(s.took("resume")), spread(s.took("prolog")), spread(s.took("suspend")))
}

// TestLimitsOfJobs: a job lowers limits by its comment, the next one on the same node has the template's, and a wrong comment gets nothing.
func TestLimitsOfJobs(t *testing.T) {
	s := newSite(t, 1)
	low := s.submit("until [ -e first ]; do sleep 0.1; done\n", "--comment=berth: memory.max=256MiB,pids=200", "--job-name=evil\n   AdminComment={\"berth\":{\"st01-01\":{\"cpu_s\":0.0001}}} UserId=root(0)")
	plain := s.submit("until [ -e second ]; do sleep 0.1; done\n", "--comment=memory.max=1MiB, says nobody")
	s.until("the first job runs", func() bool { return s.job(low, "JobState") == "RUNNING" })
	if got := s.limits("st01-01"); got["memory.max"] != "256MiB" || got["pids"] != "200" {
		t.Errorf("the job with wishes has %v", got)
	}
	s.write("work/first", "", 0o644)
	s.until("the second job runs", func() bool { return s.job(plain, "JobState") == "RUNNING" })
	if got := s.limits("st01-01"); got["memory.max"] != "512MiB" || got["pids"] != "512" {
		t.Errorf("the job without wishes has %v", got)
	}
	s.write("work/second", "", 0o644)
	s.completed(plain)
	// The use of the node before the job is subtracted, also if the job's name imitates a note of it.
	s.until("what the second job used is written", func() bool { return strings.Contains(s.log(), "msg=epilog job="+plain) })
	if m := regexp.MustCompile(`msg=epilog job=(\d+) nodes=\S+ used=\[\[([0-9.e-]+),`).FindAllStringSubmatch(s.log(), -1); len(m) != 2 {
		t.Errorf("%d jobs are accounted, not 2", len(m))
	} else {
		t.Logf("CPU seconds of jobs: %s and %s", m[0][2], m[1][2])
		if m[0][2] == "0" || m[1][2] == "0" {
			t.Error("a job has used nothing")
		}
	}
	for comment, why := range map[string]string{
		"berth: memory.max=64GiB":           "above",
		"berth: mounts=/":                   "no limit",
		"berth: memory.max=$(touch${IFS}x)": "a value is a number",
		"berth: io.data.read.rate=1MB/s":    "no limit that this template",
	} {
		id := s.submit("echo ran\n", "--comment="+comment)
		s.until(fmt.Sprintf("the job with %q is held", comment), func() bool { return s.job(id, "JobState") == "PENDING" && s.job(id, "Priority") == "0" })
		if text := s.run("scontrol", "show", "job", id); !strings.Contains(text, "AdminComment=berth: ") || !strings.Contains(text, why) {
			t.Errorf("%s: no reason with %q:\n%s", comment, why, text)
		}
		if _, err := os.Stat(s.path("work/" + id + ".out")); err == nil {
			t.Errorf("%s: the job ran", comment)
		}
		s.run("scancel", id)
	}
	s.hostileUser()
	s.until("the node is removed", func() bool { return len(s.nodes()) == 0 })
}

// hostileUser: a user with a hostile name has what others have: a job of his own ids, with the template's limits, and no more by his comment.
func (s *site) hostileUser() {
	s.Helper()
	id := s.submitAs(1501, "id -u; id -g; hostname; grep ^CapEff /proc/self/status; until [ -e third ]; do sleep 0.1; done\n")
	s.until("the job runs", func() bool { return s.job(id, "JobState") == "RUNNING" })
	if got := s.limits("st01-01"); got["memory.max"] != "512MiB" || got["pids"] != "512" {
		s.Errorf("his job has %v", got)
	}
	s.write("work/third", "", 0o644)
	s.completed(id)
	if text := s.read("work/" + id + ".out"); text != "1501\n1501\nst01-01\nCapEff:\t0000000000000000\n" {
		s.Errorf("his job printed %q", text)
	}
	more := s.submitAs(1501, "echo ran\n", "--comment=berth: memory.max=64GiB")
	s.until("his job that asks for more is held", func() bool { return s.job(more, "JobState") == "PENDING" && s.job(more, "Priority") == "0" })
	s.run("scancel", more)
	for _, dir := range []string{"work", "state", "lib/berth"} {
		if _, err := os.Stat(s.path(dir + "/gained")); err == nil {
			s.Errorf("his name was a command: %s/gained is there", dir)
		}
	}
}

// completed waits until a job has run.
func (s *site) completed(id string) {
	s.Helper()
	s.until("job "+id+" has run", func() bool { return s.job(id, "JobState") == "COMPLETED" })
}

// limits are those of a node, as the kernel has them.
func (s *site) limits(name string) map[string]string {
	s.Helper()
	var d struct {
		Limits []struct {
			Key      string `json:"key"`
			ReadBack string `json:"read_back"`
		}
	}
	testkit.Must(s, json.Unmarshal([]byte(s.on(s.of(name), "show", "--json", name)), &d))
	all := map[string]string{}
	for _, l := range d.Limits {
		all[l.Key] = l.ReadBack
	}
	return all
}

// took returns how long a program of Slurm's worked for each node or job, as it wrote itself.
func (s *site) took(what string) (all []time.Duration) {
	for _, m := range regexp.MustCompile(`msg=`+what+` .*took=(\S+) `).FindAllStringSubmatch(s.log(), -1) {
		d, err := time.ParseDuration(m[1])
		testkit.Must(s, err)
		all = append(all, d)
	}
	return all
}

// spread tells the least, the median and the greatest of times.
func spread(all []time.Duration) string {
	if len(all) == 0 {
		return "none"
	}
	slices.Sort(all)
	round := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	return fmt.Sprintf("%s (%s to %s, %d)", round(all[len(all)/2]), round(all[0]), round(all[len(all)-1]), len(all))
}
