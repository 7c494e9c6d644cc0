package slurm

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/internal/site/store/etcd"
	"berth/internal/site/store/storetest"
	"berth/test/built"
	"berth/test/sample"
	"berth/test/testkit"
)

var (
	walkEvents = flag.Int("walk-events", 15, "TestWalk: how many events")
	walkJSON   = flag.String("walk-json", "", "file for what was seen")
)

// TestWalk: two hosts, jobs all the time, and one failure after another. Once the last one is mended, each job has run to its end, each slot has a
// job again without anybody's help, and nothing is left. The events and their order come of the seed; when Slurm does what does not.
func TestWalk(t *testing.T) {
	needs(t)
	w := sample.Of(t)
	program := filepath.Join(t.TempDir(), "etcd")
	testkit.Must(t, built.Etcd(t.Context(), filepath.Dir(program)))
	server, endpoint := storetest.Etcd(t, program)
	claims, err := etcd.Open(etcd.Config{Endpoints: []string{endpoint}})
	testkit.Must(t, err)
	defer claims.Close()
	storetest.Ready(t, claims)
	s := &site{T: t, slots: 2, strict: true, hasty: true, store: endpoint}
	s.begin("st01", "st02")
	h := &hike{site: s, Walk: w, etcd: server, claims: claims, began: time.Now(), jobs: map[string]*job{}, seen: seen{Reasons: map[string]int{}, Ends: map[string]int{}}}
	h.eachSlot()
	before := h.left()
	t.Logf("before: %d things\n%s", len(before), strings.Join(before, "\n"))
	stop := h.watch()
	var deck []event
	for i := range *walkEvents {
		if len(deck) == 0 {
			for _, at := range h.Perm(len(events)) {
				deck = append(deck, events[at])
			}
		}
		h.step(i+1, deck[0])
		deck = deck[1:]
	}
	h.finish(before)
	stop()
	h.tell()
}

// hike is a walk under way.
type hike struct {
	*site
	sample.Walk
	etcd   *storetest.Process
	claims *etcd.Store
	began  time.Time
	jobs   map[string]*job
	order  []string // ids in the order of submission

	mu sync.Mutex
	seen
}

// seen is what a walk saw.
type seen struct {
	Seed     string         `json:"seed"`
	Slurm    string         `json:"slurm"`
	Events   []happened     `json:"events"`
	Reasons  map[string]int `json:"reasons"` // of nodes that were down: of how many looks a second apart
	Ends     map[string]int `json:"ends"`    // how many jobs ended so
	Restarts int            `json:"restarts"`
	Released int            `json:"released"` // jobs that Slurm held: queued again too often, or not launched
	Twice    int            `json:"twice"`    // jobs whose script came to its end more than once
	Settled  float64        `json:"settled_seconds"`
}

// job is a job, and how it must end.
type job struct{ end string }

// happened is an event as it was.
type happened struct {
	At    float64 `json:"at_seconds"`
	Name  string  `json:"name"`
	Where string  `json:"where,omitempty"`
	Until float64 `json:"mended_at_seconds"`
}

func (h *hike) now() float64 { return float64(time.Since(h.began).Milliseconds()) / 1000 }

// step lets one thing fail while jobs come and run, and mends it.
func (h *hike) step(n int, e event) {
	h.Helper()
	h.submitted(1 + h.IntN(2))
	h.pause(0, 1500)
	one := happened{At: h.now(), Name: e.name}
	before := strings.Count(h.log(), "begin resume")
	mend, where := e.fail(h)
	one.Where = where
	if h.services["slurmctld"] != nil {
		h.submitted(1)
	}
	for i := 0; e.made && i < 120 && strings.Count(h.log(), "begin resume") == before; i++ {
		time.Sleep(100 * time.Millisecond)
	}
	h.pause(1500, 4000)
	mend()
	one.Until = h.now()
	h.mu.Lock()
	h.Events = append(h.Events, one)
	h.mu.Unlock()
	h.Logf("%d: %s %s: from %.1f s to %.1f s", n, one.Name, one.Where, one.At, one.Until)
}

func (h *hike) pause(from, to int) {
	time.Sleep(time.Duration(from+h.IntN(to-from)) * time.Millisecond)
}

// submitted submits jobs that take some seconds.
func (h *hike) submitted(n int) {
	h.Helper()
	for range n {
		h.take(fmt.Sprintf("echo began $(hostname)\nsleep %d\necho done\n", 1+h.IntN(4)), "COMPLETED")
	}
}

// take submits a job and keeps in mind how it must end.
func (h *hike) take(script, end string, args ...string) string {
	h.Helper()
	id := h.submit(script, append([]string{"--open-mode=append"}, args...)...)
	h.jobs[id] = &job{end}
	h.order = append(h.order, id)
	return id
}

// state is that of a job, and its priority. Among other fields, a job's name could imitate them.
func (h *hike) state(id string) (state, priority string) {
	h.Helper()
	out := h.run("squeue", "--noheader", "--states=all", "--jobs="+id, "--format=%T %Q")
	state, priority, _ = strings.Cut(out, " ")
	return state, priority
}

// watch lets jobs that were queued again start soon, and writes down why nodes are down, until it is stopped.
func (h *hike) watch() (stop func()) {
	end := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		for {
			select {
			case <-end:
				return
			case <-time.After(time.Second):
			}
			out, err := h.try("squeue", "--noheader", "--states=PENDING", "--format=%i %r")
			for line := range strings.Lines(out) {
				id, why, _ := strings.Cut(strings.TrimSpace(line), " ")
				switch {
				case err != nil:
				case why == "BeginTime":
					_, _ = h.try("scontrol", "update", "JobId="+id, "StartTime=now") // it may begin meanwhile
				case why == "JobHoldMaxRequeue", why == "launch failed requeued held":
					h.mu.Lock()
					h.Released++
					h.mu.Unlock()
					_, _ = h.try("scontrol", "release", id)
				}
			}
			out, err = h.try("sinfo", "--noheader", "--list-reasons", "--format=%300E")
			h.mu.Lock()
			for line := range strings.Lines(out) {
				if err == nil {
					h.Reasons[plain.ReplaceAllString(strings.TrimSpace(line), "N")]++
				}
			}
			h.mu.Unlock()
		}
	})
	return func() { close(end); work.Wait() }
}

// plain finds what differs from run to run: folders, and the numbers of addresses.
var plain = regexp.MustCompile(`/tmp/\S+|\b[0-9]+\b`)

// finish waits until all is as it must be at the end.
func (h *hike) finish(before []string) {
	h.Helper()
	mended := time.Now()
	for _, id := range h.order {
		if h.jobs[id].end == held {
			h.within(5*testkit.Bound(), "job "+id+" is held", func() bool { state, priority := h.state(id); return state == "PENDING" && priority == "0" })
			h.run("scancel", id)
			h.jobs[id].end = "CANCELLED"
		}
	}
	for _, id := range h.order {
		h.within(5*testkit.Bound(), "job "+id+" is at its end", func() bool {
			state, _ := h.state(id)
			return state != "PENDING" && state != "CONFIGURING" && state != "RUNNING" && state != "COMPLETING"
		})
	}
	h.within(5*testkit.Bound(), "no node is down", func() bool { return h.run("sinfo", "--noheader", "--list-reasons") == "" })
	h.Settled = time.Since(mended).Seconds()
	h.ends()
	h.eachSlot()
	h.same(before)
}

// ends compares how jobs ended, and what they wrote.
func (h *hike) ends() {
	h.Helper()
	for _, id := range h.order {
		state, _ := h.state(id)
		text, _ := os.ReadFile(h.path("work/" + id + ".out"))
		began, done := strings.Count(string(text), "began"), strings.Count(string(text), "done")
		if state != h.jobs[id].end {
			h.Errorf("job %s is %s, not %s: %s", id, state, h.jobs[id].end, h.run("scontrol", "show", "job", id))
		}
		switch {
		case state == "COMPLETED" && done == 0:
			h.Errorf("job %s is completed, and wrote %q", id, text)
		case state == "CANCELLED" && done > 0:
			h.Errorf("job %s is cancelled, and wrote %q", id, text)
		}
		h.Ends[state]++
		h.Restarts += max(0, began-1)
		if done > 1 {
			h.Twice++
		}
	}
}

// eachSlot has a job run on each slot, and waits until the nodes are gone.
func (h *hike) eachSlot() {
	h.Helper()
	ids := map[string]string{}
	for _, one := range h.hosts {
		for slot := range h.slots {
			node := fmt.Sprintf("%s-%02d", one.name, slot+1)
			ids[node] = h.submit("hostname\n", "--nodelist="+node)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(ids)) {
		h.completed(ids[node])
		if text, err := os.ReadFile(h.path("work/" + ids[node] + ".out")); err != nil || !strings.HasSuffix(string(text), node+"\n") { // slurmstepd may say something before
			h.Errorf("the job for %s wrote %q: %v", node, text, err)
		}
	}
	h.until("the nodes are removed", func() bool { return len(h.nodes()) == 0 })
	h.until("slurmctld says so", func() bool { return !strings.Contains(h.run("sinfo", "-h", "-N", "-o", "%T"), "powering_down") })
}

// same waits until the host has what it had before, and no more.
func (h *hike) same(before []string) {
	h.Helper()
	var now []string
	if testkit.Happens(func() bool { now = h.left(); return slices.Equal(before, now) }) {
		return
	}
	for _, line := range now {
		if !slices.Contains(before, line) {
			h.Errorf("left: %s", line)
		}
	}
	for _, line := range before {
		if !slices.Contains(now, line) {
			h.Errorf("missing: %s", line)
		}
	}
	if !h.Failed() {
		h.Errorf("before:\n%s\nnow:\n%s", strings.Join(before, "\n"), strings.Join(now, "\n"))
	}
}

// digits of process ids and temporary files differ from start to start.
var digits = regexp.MustCompile(`[0-9]{4,}`)

// traces lists what nodes leave on their hosts that are not removed: mounts, links, cgroups with their processes, and files.
func (s *site) traces() (all []string) {
	s.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	testkit.Must(s, err)
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if strings.Contains(line, s.dir) {
			all = append(all, "mount "+f[4])
		}
		if !strings.Contains(line, " - cgroup") {
			continue
		}
		for _, one := range s.hosts {
			groups, _ := filepath.Glob(filepath.Join(f[4], one.layout.CgroupParent()+"*/*/"))
			for _, g := range groups {
				all = append(all, "cgroup "+g)
			}
		}
	}
	for line := range strings.Lines(s.run("ip", "-oneline", "link", "show", "master", s.bridge)) {
		all = append(all, "link "+line)
	}
	for _, one := range s.hosts {
		for _, dir := range []string{"lib/nodes", "run/nodes", "lib/macs", "lib/addresses", "lib/ids", "lib/vfs"} {
			files, _ := filepath.Glob(filepath.Join(one.root, dir, "*"))
			for _, f := range files {
				all = append(all, "file "+f)
			}
		}
	}
	slices.Sort(all)
	return all
}

// left lists what nodes could leave: traces, other processes, and claims.
func (h *hike) left() []string {
	h.Helper()
	all := h.traces()
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range commands {
		text, _ := os.ReadFile(path) // of a process that has ended: nothing
		if line := strings.ReplaceAll(string(text), "\x00", " "); strings.Contains(line, h.dir) {
			all = append(all, "process "+digits.ReplaceAllString(line, "N"))
		}
	}
	history, err := storetest.ReadHistory(h.Context(), h.claims)
	testkit.Must(h, err)
	for key, who := range history.Held {
		all = append(all, "claim "+key+" of "+who)
	}
	slices.Sort(all)
	return all
}

// tell tells what was seen, and keeps it.
func (h *hike) tell() {
	h.Helper()
	h.Seed, h.Slurm = os.Getenv("BERTH_WALK"), h.run("slurmctld", "-V")
	text, err := json.MarshalIndent(h.seen, "", "\t")
	testkit.Must(h, err)
	h.Logf("%d events, %d jobs: %v; %d starts more than jobs, %d ran to the end twice; %.1f s from the last mend until all had run and no node was down",
		len(h.Events), len(h.order), h.Ends, h.Restarts, h.Twice, h.Settled)
	for _, reason := range slices.Sorted(maps.Keys(h.Reasons)) {
		h.Logf("%4d s: %s", h.Reasons[reason], reason)
	}
	if *walkJSON != "" {
		testkit.Must(h, os.WriteFile(*walkJSON, append(text, '\n'), 0o644))
	}
}
