//go:build cost

// The test of this file measures for minutes: scripts/bench-sync preload runs it, and keeps what it prints.

package sync

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/bench/stat"
	"berth/test/built"
	"berth/test/testkit"
)

// The design, fixed before anything is measured.
const (
	costPairs  = 30
	costMargin = 3.0 // percent
	costSeed   = 20261125
)

// TestCost compares XRootD with the library, for a node without a limit, with XRootD without it: pairs in random order on one host,
// from the server's page cache, where nothing hides what the library costs.
func TestCost(t *testing.T) {
	s := newSite(t, "198.51.109")
	testkit.Must(t, built.Preload(t.Context(), s.dir))
	s.configure(fmt.Sprintf("filesystems: [{name: shared, path: %s, server: xrootd, user: xrootd}]\n", s.served))
	s.start()
	s.file("large", 512<<20)
	s.file("small", 64<<10)
	s.apart()
	s.node("free", 2, "io: [{name: s, filesystem: shared}]\n")
	ports := map[bool]int{true: 1094, false: 1095}
	for with, port := range ports {
		p := xrootd
		p.port, p.forks = port, !with // forks: without the library
		p.start = func(s *site) *exec.Cmd {
			admin := fmt.Sprintf("admin%d", port)
			own(s, admin, "xrootd")
			conf := s.write(admin+".cf", fmt.Sprintf("all.export /\noss.localroot %s\nxrd.port %d\nall.adminpath %[3]s\nall.pidpath %[3]s\n", s.served, port, filepath.Join(s.dir, admin)))
			return exec.Command("setpriv", "--reuid", "xrootd", "--regid", "xrootd", "--init-groups", "xrootd", "-c", conf, "-n", admin)
		}
		s.serving(p)
	}
	dice := rand.New(rand.NewPCG(costSeed, 1))
	for _, row := range []struct {
		name string
		work func(url string) string
	}{
		{"512 MiB from memory", func(url string) string { return "xrdcp --nopbar --force " + url + "large /dev/null" }},
		{"20 connections, a file of 64 KiB each", func(url string) string {
			return "for i in $(seq 20); do xrdcp --nopbar --silent --force " + url + "small /dev/null; done"
		}},
	} {
		took := func(with bool) float64 {
			began := time.Now()
			s.berth("exec", "free", "--", "sh", "-ec", row.work(fmt.Sprintf("root://%s.1:%d//", s.net, ports[with])))
			return time.Since(began).Seconds()
		}
		var d, null []float64
		for pair := range costPairs + 1 {
			var with, without, again float64
			arms := []func(){func() { with = took(true) }, func() { without = took(false) }, func() { again = took(false) }}
			dice.Shuffle(len(arms), func(i, j int) { arms[i], arms[j] = arms[j], arms[i] })
			for _, arm := range arms {
				arm()
			}
			if pair > 0 { // the first one warms up
				d, null = append(d, math.Log(with/without)), append(null, math.Log(again/without))
			}
		}
		for _, one := range []struct {
			name string
			d    []float64
		}{{"with the library", d}, {"without, again", null}} {
			c := stat.Judge(negative(one.d), costMargin, func(l float64) float64 { return 100 * (math.Exp(-l) - 1) })
			t.Logf("%s, %s: %+.2f %% time (95 %%: %+.2f to %+.2f), %d pairs: %s at %.0f %%", row.name, one.name, c.PenaltyPct, c.CI95Pct[0], c.CI95Pct[1], c.Pairs,
				strings.ToLower(fmt.Sprint(c.Verdict)), costMargin)
		}
	}
}

// negative turns log ratios in which less is better into those in which more is.
func negative(d []float64) []float64 {
	n := make([]float64, len(d))
	for i, v := range d {
		n[i] = -v
	}
	return n
}
