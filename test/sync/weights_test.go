package sync

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/test/built"
	"berth/test/loop"
	"berth/test/shares"
	"berth/test/testkit"
)

// The design, fixed before anything is measured. Turns with weights and without them alternate, because machines drift.
const (
	weighPairs  = 2                // in a test
	weighKept   = 12               // as data
	weighTurn   = 10 * time.Second // of which windows are counted
	weighWindow = 2 * time.Second
	weighSettle = 2 * time.Second // until all readers are at work
	weighReader = 4               // of a node
	weighPoints = 4               // a share may be off by that many percentage points
	weighLoss   = 8               // so many percent of the disk may be lost
	weighLate   = 5               // so many percent of short waits may be late: BFQ waits only 8 ms for a node whose turn it is
	slowDisk    = 20e6            // bytes a second: much less than servers and clients can do on a busy machine
)

// weighFile is the size of a reader's file: more than any reads in a turn.
var weighFile = map[string]int64{"heavy": 160 << 20, "light": 80 << 20}

// weighed is a server, and how its disk is set up beside BFQ without low_latency.
type weighed struct {
	fileServer
	name  string
	queue map[string]string
	kept  bool // only measured as data
}

// TestWeights: nodes with weights of 800 and 100 share a disk that is the bottleneck 8:1, though the server's threads serve both.
func TestWeights(t *testing.T) {
	fine := map[string]string{"max_sectors_kb": "128", "iosched/max_budget": "1024"} // sectors
	for i, w := range []weighed{
		{xrootd, "requests of 128 KiB, budgets of 512 KiB", fine, false},
		{ganesha, "requests of 128 KiB, budgets of 512 KiB", fine, true},
		{xrootd, "requests and budgets as the kernel has them", nil, true},
	} {
		if !w.kept || shares.Keeps() {
			t.Run(w.kind, func(t *testing.T) { weighs(t, w, fmt.Sprint("198.51.", 120+i)) })
		}
	}
}

func weighs(t *testing.T, w weighed, net string) {
	needs(t, w.programs...)
	var disk *loop.Slow
	s := siteOn(t, net, func() string { disk = loop.SlowForTest(t, 5<<28); return disk.Path })
	queue := "/sys/block/" + filepath.Base(s.disk) + "/queue/"
	if text, _ := os.ReadFile(queue + "scheduler"); !strings.Contains(string(text), "bfq") {
		t.Skip("needs BFQ")
	}
	set := func(key, value string) {
		t.Helper()
		testkit.Must(t, os.WriteFile(queue+key, []byte(value), 0))
	}
	sectors, err := os.ReadFile(queue + "max_sectors_kb")
	testkit.Must(t, err)
	t.Cleanup(func() { set("max_sectors_kb", string(sectors)); set("scheduler", "none") })
	testkit.Must(t, built.Preload(t.Context(), s.dir))
	s.configure(fmt.Sprintf("filesystems: [{name: shared, path: %s, server: %s, user: %s}]\n", s.served, w.kind, w.user))
	s.start()
	nodes := []string{"heavy", "light"}
	for _, node := range nodes {
		for i := range weighReader {
			s.file(fmt.Sprint(node, i), weighFile[node])
		}
	}
	s.apart()
	for i, node := range nodes {
		s.node(node, 2+i, "io: [{name: s, filesystem: shared}]\n")
	}
	// libnfs makes a client's name of process id and second, and each node counts its ids by itself.
	s.berth("exec", "light", "--", "sh", "-c", "for i in $(seq 1000); do /bin/true; done")
	p := w.fileServer
	if p.kind == "xrootd" {
		p.start = startXRootD("") // with a thread for each of the connections
	}
	s.serving(p)
	disk.Rate(slowDisk)
	row := &shares.Row{Kind: shares.Share, Asked: []float64{800.0 / 9, 100.0 / 9}, Seconds: weighWindow.Seconds(), Started: time.Now().UTC()}
	row.Name = fmt.Sprintf("bfq, v1, 800:100, %s by way preload, %d readers a node, a disk of %.0f MB/s, %s", p.kind, weighReader, slowDisk/1e6, w.name)
	found, late := s.audit("shared"), shares.Witness()
	with := func() {
		set("scheduler", "bfq")
		set("iosched/low_latency", "0")
		for key, value := range w.queue {
			set(key, value)
		}
		s.berth("set", "heavy", "io.s.weight=800")
		s.berth("set", "light", "io.s.weight=100")
		s.eventually("the weights are in force", time.Second, func() bool { return s.weightOf("heavy") == 800 && s.weightOf("light") == 100 })
		row.Got = append(row.Got, s.contend(p, nodes)...)
	}
	without := func() {
		for _, node := range nodes {
			s.berth("set", node, "io.s.weight=default")
		}
		set("scheduler", "none")
		set("max_sectors_kb", string(sectors))
		for _, window := range s.contend(p, nodes) {
			row.Unweighed = append(row.Unweighed, window[0]+window[1])
		}
	}
	pairs := weighPairs
	if shares.Keeps() {
		pairs = weighKept
	}
	for pair := range pairs {
		if pair%2 == 0 {
			with()
			without()
		} else {
			without()
			with()
		}
	}
	row.Late = late()
	disk.Rate(0)
	t.Logf("%s", row.Text())
	testkit.Must(t, row.Keep("sync-weights/v1.json"))
	clean(t, found(), "light")
	wrong := row.Within(weighPoints)
	if lost, _ := row.Lost(); lost.CI95 == nil || lost.CI95[0] > weighLoss {
		wrong = append(wrong, fmt.Sprintf("%s: %.1f %% lost", row.Name, lost.Got))
	}
	switch {
	case len(wrong) == 0 || shares.Keeps() || !testkit.Measures():
	case row.Late > weighLate:
		t.Skipf("needs a machine with time to spare: %.0f %% of waits of 10 ms came 8 ms late or more", row.Late)
	default:
		t.Error(strings.Join(wrong, "\n"))
	}
}

// contend has all nodes read, each by several clients, and returns what each got in each window of a turn, in bytes a second.
func (s *site) contend(p fileServer, nodes []string) (got [][]float64) {
	s.t.Helper()
	var all sync.WaitGroup
	for _, node := range nodes {
		script := ""
		for i := range weighReader {
			file := fmt.Sprint(node, i)
			s.cold(file)
			script += fmt.Sprintf("(timeout %.0f %s; [ $? = 124 ]) & p=\"$p $!\"\n", (weighTurn + 2*weighSettle + time.Second).Seconds(), quoted(p.read(s, file)))
		}
		all.Go(func() { s.berth("exec", node, "--", "sh", "-c", script+"for p in $p; do wait $p || exit; done") })
	}
	time.Sleep(weighSettle)
	for range int(weighTurn / weighWindow) {
		began, window := time.Now(), []float64{}
		for _, node := range nodes {
			window = append(window, -float64(s.counted(node)))
		}
		time.Sleep(weighWindow)
		took := time.Since(began).Seconds()
		for i, node := range nodes {
			window[i] = (window[i] + float64(s.counted(node))) / took
		}
		got = append(got, window)
	}
	all.Wait()
	s.settled()
	return got
}

// quoted are words of a command as a shell reads them.
func quoted(words []string) string {
	var all []string
	for _, w := range words {
		all = append(all, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
	}
	return strings.Join(all, " ")
}
