package sync

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/test/built"
	"berth/test/testkit"
)

var (
	rateWindow = flag.Duration("rate-window", 0, "TestRates: how long each rate is looked at; 0: half a minute where its verdict counts, else 3 s")
	rateAsked  = flag.String("rate-asked", "10,40", "rates that are asked for, MB/s")
	ratePairs  = flag.Int("rate-pairs", 1, "how often a node without a limit is looked at alone and beside the other")
	rateJSON   = flag.String("rate-json", "", "folder for the results, a file a server")
)

// The design, fixed before anything is measured.
const (
	rateSettle  = 2 * time.Second
	rateJudged  = 30 * time.Second // what is promised is promised of this time: in 3 s a request of 1 MB at either end is 3 % of 10 MB/s
	rateShort   = 3 * time.Second
	rateClients = 3 // of a node, each with a file of its own, so that one of them waits while another one begins anew
	rateFile    = 150 << 20
	rateMargin  = 0.05
	rateRoom    = 1.3 // a rate is judged if the node did so many times as much without one
	rateBeside  = 0.7 // of its rate alone the node without a limit keeps
)

// ratesResult is what TestRates measured of a server, in bytes a second.
type ratesResult struct {
	Server  string       `json:"server"`
	Window  float64      `json:"window_seconds"`
	Rows    []rateRow    `json:"rows"`
	Beside  [][2]float64 `json:"neighbour_alone_and_beside"` // reads of a node without a limit, alone and beside one with 10 MB/s
	Kept    float64      `json:"neighbour_keeps"`            // median of the ratios
	Leaked  int64        `json:"leaked"`
	Started time.Time    `json:"started"`
}

type rateRow struct {
	Does  string  `json:"does"`
	Asked float64 `json:"asked"` // 0: no limit
	Got   float64 `json:"got"`   // by the disk
}

// TestRates: real servers with as many threads as they have by themselves: what a node reads and writes durably at rates from small to
// large, for half a minute each, and what a node without a limit keeps beside it. Where a run keeps nothing, it is a short one.
func TestRates(t *testing.T) {
	pool := xrootd
	pool.start = startXRootD("")
	for i, p := range []fileServer{{kind: "sftp"}, samba, pool, ganesha} {
		t.Run(p.kind, func(t *testing.T) { rated(t, p, fmt.Sprint("198.51.", 130+i)) })
	}
}

func rated(t *testing.T, p fileServer, net string) {
	needs(t, p.programs...)
	s := newSite(t, net)
	testkit.Must(t, built.Preload(t.Context(), s.dir))
	more, mounted := "", ""
	if p.user != "" {
		more = ", user: " + p.user
	}
	s.configure(fmt.Sprintf("filesystems: [{name: shared, path: %s, server: %s%s}]\n", s.served, p.kind, more))
	s.start()
	nodes := []string{"slow", "fast"}
	for _, n := range nodes {
		for i := range rateClients {
			if n == "slow" || i < 2 {
				s.file(fmt.Sprint(n, i), rateFile)
			}
		}
	}
	for i := range rateClients {
		dir := filepath.Join(s.served, fmt.Sprint("durable", i))
		s.run("install", "-d", "-m", "777", dir)
		s.run("chattr", "+S", dir)
	}
	if p.start == nil {
		s.serve()
		mounted = "mounts: [{source: '" + s.net + ".1:/', target: /mnt, gateway: sshfs-direct}]\n"
		p.read = func(_ *site, file string) []string { return []string{"dd", "if=/mnt/" + file, "of=/dev/null", "bs=1M"} }
		p.write = func(_ *site, folder string) string {
			return "dd if=/tmp/own of=/mnt/" + folder + "/written bs=1M oflag=dsync"
		}
	} else {
		s.apart()
	}
	s.node("slow", 2, mounted+"io: [{name: s, filesystem: shared}]\n")
	s.node("fast", 3, mounted+"io: [{name: s, filesystem: shared}]\n")
	if p.start != nil {
		s.serving(p)
	}
	s.berth("exec", "slow", "--", "sh", "-c", "head -c 40000000 /dev/zero > /tmp/own")
	window, judged := cmp.Or(*rateWindow, rateShort), cmp.Or(*rateWindow, rateShort)
	if testkit.Measures() {
		judged = cmp.Or(*rateWindow, rateJudged)
	}
	r := ratesResult{Server: p.kind, Window: judged.Seconds(), Started: time.Now().UTC().Truncate(time.Second)}
	found := s.audit("shared")
	for _, does := range []string{"read", "write"} {
		field := map[string]int{"read": 2, "write": 6}[does]
		free := s.windowed(p, does, []string{"slow"}, window, func() uint64 { return s.diskDid(field) })
		r.Rows = append(r.Rows, rateRow{does, 0, free})
		for text := range strings.SplitSeq(*rateAsked, ",") {
			mb, err := strconv.ParseFloat(text, 64)
			testkit.Must(t, err)
			s.berth("set", "slow", fmt.Sprintf("io.s.%s.rate=%gMB/s", does, mb))
			s.eventually("the rate is in force", time.Second, func() bool { return s.throttle("slow", does) == uint64(mb*1e6) })
			got := s.windowed(p, does, []string{"slow"}, judged, func() uint64 { return s.diskDid(field) })
			r.Rows = append(r.Rows, rateRow{does, mb * 1e6, got})
			t.Logf("%s: %s %.2f MB/s of %g, %.0f without a limit", p.kind, does, got/1e6, mb, free/1e6)
			if testkit.Measures() && (got > (1+rateMargin)*mb*1e6 || free > rateRoom*mb*1e6 && got < (1-rateMargin)*mb*1e6) {
				t.Errorf("%s: %s %.2f MB/s of %g, %.0f without a limit", p.kind, does, got/1e6, mb, free/1e6)
			}
		}
		s.berth("set", "slow", "io.s."+does+".rate=max")
	}
	s.berth("set", "slow", "io.s.read.rate=10MB/s")
	var kept []float64
	for range *ratePairs {
		did := func() uint64 { return s.counted("fast") }
		one := [2]float64{s.windowed(p, "read", []string{"fast"}, window, did), s.windowed(p, "read", nodes, window, did)}
		r.Beside, kept = append(r.Beside, one), append(kept, one[1]/one[0])
	}
	slices.Sort(kept)
	r.Kept = kept[len(kept)/2]
	t.Logf("%s: beside the other node, the one without a limit keeps %.2f of its rate: %.2f", p.kind, r.Kept, kept)
	if testkit.Measures() && r.Kept < rateBeside {
		t.Errorf("%s: the node without a limit keeps %.2f of its rate", p.kind, r.Kept)
	}
	result := found()
	r.Leaked = result.Leaked
	clean(t, result, "slow")
	if *rateJSON != "" {
		text, err := json.MarshalIndent(r, "", "  ")
		testkit.Must(t, err)
		testkit.Must(t, os.WriteFile(filepath.Join(*rateJSON, p.kind+".json"), append(text, '\n'), 0o644))
	}
}

// windowed has nodes read or write all the time, past the server's page cache, and returns how much a counter grows a second in a window
// once they are at work.
func (s *site) windowed(p fileServer, does string, nodes []string, window time.Duration, did func() uint64) float64 {
	s.t.Helper()
	stop, forgets := make(chan struct{}), make(chan struct{})
	var files []string
	var clients sync.WaitGroup
	for _, n := range nodes {
		script := ""
		for i := range rateClients {
			file := fmt.Sprint(n, i)
			command := quoted(p.read(s, file))
			if does == "write" {
				command = p.write(s, fmt.Sprint("durable", i))
			} else if _, err := os.Stat(filepath.Join(s.served, file)); err != nil {
				continue
			}
			files = append(files, file)
			script += fmt.Sprintf("timeout %.0f sh -c %s >/dev/null 2>&1 & ", (2*rateSettle + window).Seconds(), quoted([]string{"while :; do " + command + "; done"}))
		}
		clients.Go(func() {
			_ = exec.Command(s.dir+"/berth", "--root", s.root, "exec", n, "--", "sh", "-c", script+"wait").Run() // they are ended
		})
	}
	go func() {
		defer close(forgets)
		for {
			for _, f := range files {
				if does == "read" {
					s.cold(f)
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	time.Sleep(rateSettle)
	before, began := did(), time.Now()
	time.Sleep(window)
	rate := float64(did()-before) / time.Since(began).Seconds()
	clients.Wait()
	close(stop)
	<-forgets
	return rate
}
