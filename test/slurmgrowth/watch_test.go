//go:build growth

package slurmgrowth

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// latency is how long a command took, in seconds: from when it was due, every 200 ms, to its end.
type latency struct {
	Count      int                `json:"count"`
	Failed     int                `json:"failed"`
	Median     float64            `json:"median_s"`
	P99        float64            `json:"p99_s"`
	Max        float64            `json:"max_s"`
	MaxUntil   map[string]float64 `json:"max_s_until"` // in the phase that ends so
	OverSecond int                `json:"over_1s"`
	CPU        float64            `json:"cpu_s_each"`
}

// daemon is one process over the whole run.
type daemon struct {
	CPU      float64            `json:"cpu_s"`
	MostCPU  float64            `json:"most_cpu_share"` // of one processor, in two seconds or a little more
	RSS      float64            `json:"most_rss_mib"`
	Threads  int                `json:"most_threads"`
	ByThread map[string]float64 `json:"cpu_s_by_thread,omitempty"` // of those seen; short ones are missed
}

// each is processes of one name at one time; the memory is that of the first 50.
type each struct {
	Count int     `json:"count"`
	RSS   float64 `json:"rss_mib_mean"`
	PSS   float64 `json:"pss_mib_mean"`
}

type sample struct {
	phase string
	took  float64
}

type watcher struct {
	c    *cluster
	ctx  context.Context
	end  context.CancelFunc
	done sync.WaitGroup

	mu      sync.Mutex
	now     []string
	took    map[string][]sample
	failed  map[string]int
	clients map[string]time.Duration
	states  map[string]int
	left    int
	diag    diag

	looking sync.Mutex // apart from mu, since many processes take long to look at
	looked  time.Time
	procs   map[string]float64 // CPU seconds by "name pid"
	threads map[string]float64 // of slurmctld, by "name tid"
	daemons map[string]*daemon
	busy    [2]float64 // of the machine: busy and all seconds of processors, at the beginning
}

// watch looks at the cluster until it is stopped.
func (c *cluster) watch() *watcher {
	w := &watcher{
		c: c, took: map[string][]sample{}, failed: map[string]int{}, clients: map[string]time.Duration{}, states: map[string]int{}, left: -1,
		procs: map[string]float64{}, threads: map[string]float64{}, daemons: map[string]*daemon{"slurmctld": {}, "munged": {}}, busy: machine(),
	}
	w.ctx, w.end = context.WithCancel(c.T.Context())
	w.every(200*time.Millisecond, func(due time.Time) { w.ask(due, "squeue", w.queue, "squeue") })
	w.every(200*time.Millisecond, func(due time.Time) { w.ask(due, "sinfo", w.info, "sinfo", "--noheader", "--format=%T %D") })
	w.every(2*time.Second, func(due time.Time) { w.ask(due, "sdiag", w.sdiag, "sdiag") })
	w.done.Go(func() {
		for ; w.ctx.Err() == nil; time.Sleep(2 * time.Second) {
			w.look()
		}
	})
	c.T.Cleanup(w.stop)
	return w
}

// every calls f when it is due, whether earlier calls have returned or not: a slow answer hides no other.
func (w *watcher) every(d time.Duration, f func(due time.Time)) {
	w.done.Go(func() {
		for due := time.Now(); w.ctx.Err() == nil; due = due.Add(d) {
			time.Sleep(time.Until(due))
			w.done.Go(func() { f(due) })
		}
	})
}

func (w *watcher) stop() {
	w.end()
	w.done.Wait()
}

func (w *watcher) phase(ended string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = append(w.now, ended)
}

func (w *watcher) ask(due time.Time, name string, read func(string), args ...string) {
	w.mu.Lock()
	phase := len(w.now)
	w.mu.Unlock()
	cmd := w.c.Command(args...)
	text, err := cmd.Output()
	took := time.Since(due).Seconds()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.failed[name]++
		return
	}
	w.took[name] = append(w.took[name], sample{strconv.Itoa(phase), took})
	w.clients[name] += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	read(string(text))
}

func (w *watcher) queue(text string) { w.left = strings.Count(text, "\n") - 1 }

func (w *watcher) info(text string) {
	clear(w.states)
	for line := range strings.Lines(text) {
		state, count, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, _ := strconv.Atoi(count)
		w.states[state] += n
	}
}

func (w *watcher) sdiag(text string) { w.diag.most(text) }

func (w *watcher) jobs() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.left
}

func (w *watcher) state(name string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.states[name]
}

func (w *watcher) counts() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprintf("jobs: %d, nodes: %v, slurmds: %d started, %d ended", w.left, w.states, w.c.fakes.started(), w.c.fakes.ended())
}

// stat is the name of a process or thread, its CPU seconds and its number of threads.
func stat(path string) (name string, cpu float64, threads int, ok bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", 0, 0, false
	}
	open, shut := strings.IndexByte(string(text), '('), strings.LastIndexByte(string(text), ')')
	f := strings.Fields(string(text[shut+1:]))
	if open < 0 || len(f) < 20 {
		return "", 0, 0, false
	}
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	threads, _ = strconv.Atoi(f[17])
	return string(text[open+1 : shut]), (user + system) / 100, threads, true // 100: USER_HZ of every architecture that Berth is built for
}

// look adds up what processes have used.
func (w *watcher) look() {
	w.looking.Lock()
	defer w.looking.Unlock()
	all, _ := filepath.Glob("/proc/[0-9]*")
	since := time.Since(w.looked).Seconds()
	w.looked = time.Now()
	for _, p := range all {
		name, cpu, threads, ok := stat(p + "/stat")
		if !ok {
			continue
		}
		key := name + " " + filepath.Base(p)
		before, seen := w.procs[key]
		w.procs[key] = cpu
		d := w.daemons[name]
		if d == nil || filepath.Base(p) != strconv.Itoa(w.c.PIDs[name]) {
			continue
		}
		if seen {
			d.MostCPU = max(d.MostCPU, (cpu-before)/since)
		}
		d.CPU, d.Threads, d.RSS = cpu, max(d.Threads, threads), max(d.RSS, memory(p)["Rss"])
		if name != "slurmctld" {
			continue
		}
		tasks, _ := filepath.Glob(p + "/task/*/stat")
		for _, task := range tasks {
			if thread, cpu, _, ok := stat(task); ok {
				w.threads[thread+" "+filepath.Base(filepath.Dir(task))] = cpu
			}
		}
	}
}

// memory is in MiB.
func memory(proc string) map[string]float64 {
	m := map[string]float64{}
	text, _ := os.ReadFile(proc + "/smaps_rollup")
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 {
			kib, _ := strconv.ParseFloat(f[1], 64)
			m[strings.TrimSuffix(f[0], ":")] = kib / 1024
		}
	}
	return m
}

func (w *watcher) each(name string) (e each) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range all {
		if is, _, _, _ := stat(p + "/stat"); is == name {
			if e.Count++; e.Count > 50 {
				continue
			}
			m := memory(p)
			e.RSS += m["Rss"]
			e.PSS += m["Pss"]
		}
	}
	looked := float64(min(max(1, e.Count), 50))
	e.RSS, e.PSS = e.RSS/looked, e.PSS/looked
	return e
}

// machine is how many seconds all processors were busy, and how many there were.
func machine() [2]float64 {
	text, _ := os.ReadFile("/proc/stat")
	first, _, _ := strings.Cut(string(text), "\n")
	var busy, all float64
	for i, f := range strings.Fields(first)[1:9] {
		n, _ := strconv.ParseFloat(f, 64)
		all += n / 100
		if i != 3 && i != 4 {
			busy += n / 100
		}
	}
	return [2]float64{busy, all}
}

// byName adds up what has a name and a number.
func byName(of map[string]float64) map[string]float64 {
	all := map[string]float64{}
	for key, v := range of {
		name, _, _ := strings.Cut(key, " ")
		all[name] = math.Round((all[name]+v)*100) / 100
	}
	return all
}

func (w *watcher) cpu() map[string]float64 {
	w.look()
	w.looking.Lock()
	defer w.looking.Unlock()
	return byName(w.procs)
}

// fill writes what was seen.
func (w *watcher) fill(r *result) {
	r.CPU = w.cpu()
	r.CPU["slurmd"] = w.c.fakes.cpu.Seconds()
	r.Commands = map[string]latency{}
	for name, all := range w.took {
		l := latency{Count: len(all), Failed: w.failed[name], MaxUntil: map[string]float64{}, CPU: w.clients[name].Seconds() / float64(len(all))}
		var took []float64
		for _, s := range all {
			took = append(took, s.took)
			if s.took > 1 {
				l.OverSecond++
			}
			phase, _ := strconv.Atoi(s.phase)
			ends := w.now[min(phase, len(w.now)-1)]
			l.MaxUntil[ends] = max(l.MaxUntil[ends], s.took)
		}
		slices.Sort(took)
		l.Median, l.P99, l.Max = took[len(took)/2], took[(len(took)*99)/100], took[len(took)-1]
		r.Commands[name] = l
		r.CPU["client "+name] = w.clients[name].Seconds()
	}
	r.Slurmctld, r.Munged = *w.daemons["slurmctld"], *w.daemons["munged"]
	r.Slurmctld.ByThread = byName(w.threads)
	now := machine()
	r.Machine["busy_share"] = (now[0] - w.busy[0]) / (now[1] - w.busy[1])
	r.Machine["cpu_s_busy"] = now[0] - w.busy[0]
	r.Sdiag = w.diag
}

// diag is what slurmctld says of itself.
type diag struct {
	Threads int            `json:"most_server_threads"`
	Queue   int            `json:"most_agent_queue"`
	Agents  int            `json:"most_agents"`
	Working int            `json:"most_agent_threads"`
	RPCs    map[string]rpc `json:"rpcs"`
	Users   map[string]rpc `json:"users"`
}

type rpc struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean_us"`
}

// most keeps the largest numbers.
func (d *diag) most(text string) {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		n, _ := strconv.Atoi(strings.TrimSpace(value))
		switch strings.TrimSpace(name) {
		case "Server thread count":
			d.Threads = max(d.Threads, n)
		case "Agent queue size":
			d.Queue = max(d.Queue, n)
		case "Agent count":
			d.Agents = max(d.Agents, n)
		case "Agent thread count":
			d.Working = max(d.Working, n)
		}
	}
}

// read reads the counts of messages.
func (d *diag) read(text string) {
	d.RPCs, d.Users = map[string]rpc{}, map[string]rpc{}
	for _, m := range regexp.MustCompile(`(?m)^\s+(\S+)\s+\(\s*\d+\)\s+count:(\d+)\s+ave_time:(\d+)`).FindAllStringSubmatch(text, -1) {
		one := rpc{}
		one.Count, _ = strconv.Atoi(m[2])
		one.Mean, _ = strconv.ParseFloat(m[3], 64)
		if strings.ToUpper(m[1]) == m[1] {
			d.RPCs[m[1]] = one
		} else {
			d.Users[m[1]] = one
		}
	}
}

// complaints counts slurmctld's errors, without what differs between them.
func complaints(log string) map[string]int {
	all := map[string]int{}
	number := regexp.MustCompile(`st\d+-\d+|\d+`)
	for line := range strings.Lines(log) {
		if _, what, found := strings.Cut(line, "error: "); found {
			all[cmp.Or(number.ReplaceAllString(strings.TrimSpace(what), "N"), "?")]++
		}
	}
	return all
}
