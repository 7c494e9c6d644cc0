// Package site tests what hosts of one site hold together, with two hosts on one machine: two roots, an agent each, an etcd.
package site

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"berth/internal/site/store"
	"berth/internal/site/store/etcd"
	"berth/internal/site/store/storetest"
	"berth/test/testkit"
)

// TestClaimsUnderKills applies and removes nodes from two hosts that want the same few names, MACs and addresses, while
// agents, keepers and etcd are killed at random. Nothing may be held twice at any revision, no node may be lost, and nothing may be
// left claimed that no node has. BERTH_KILLS says how many kills; BERTH_SEED which.
func TestClaimsUnderKills(t *testing.T) {
	if testing.Short() {
		t.Skip("no nodes with -short")
	}
	testkit.NeedsRoot(t)
	kills, seed := number(t, "BERTH_KILLS", 20), uint64(number(t, "BERTH_SEED", int(time.Now().UnixNano()%1_000_000)))
	testkit.Final(t, "two hosts held one name, MAC or address, a node was lost, or a claim was left")
	t.Logf("BERTH_KILLS=%d BERTH_SEED=%d", kills, seed)
	programs := build(t)
	server, endpoint := storetest.Etcd(t, programs.etcd)
	admin := openEtcd(t, endpoint)
	storetest.Ready(t, admin)
	hosts := []*host{newHost(t, programs, "a", endpoint), newHost(t, programs, "b", endpoint)}

	ctx, end := context.WithCancel(t.Context())
	defer end()
	var work sync.WaitGroup
	for i, h := range hosts {
		for n := range 2 {
			random := rand.New(rand.NewPCG(seed, uint64(i*2+n)))
			work.Go(func() {
				for ctx.Err() == nil {
					h.turn(t, random)
				}
			})
		}
	}
	random := rand.New(rand.NewPCG(seed, 99))
	for range kills {
		time.Sleep(time.Duration(100+random.IntN(400)) * time.Millisecond)
		switch h := hosts[random.IntN(2)]; random.IntN(4) {
		case 0:
			again := server.Kill(t)
			time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
			again()
		case 1:
			h.killKeeper()
		default:
			again := h.agent.Kill(t)
			time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
			again()
		}
	}
	testkit.Eventually(t, "one host gets what both want, and the other is refused", func() bool {
		made, refused := met(hosts)
		return made > 0 && refused > 0
	})
	end()
	work.Wait()
	check(t, admin, hosts)
}

// met returns how many applies made a node, and how many were refused because somebody else holds what they want.
func met(hosts []*host) (made, refused int) {
	for _, h := range hosts {
		h.mu.Lock()
		made += h.codes["apply"][0]
		refused += h.codes["apply"][5]
		h.mu.Unlock()
	}
	return made, refused
}

// check compares what was done, what the store's history says, and what there is; then it removes all, and nothing may stay.
func check(t *testing.T, admin *etcd.Store, hosts []*host) {
	t.Helper()
	storetest.Ready(t, admin)
	var holds []storetest.Hold
	want := map[string]string{}
	for _, h := range hosts {
		h.berth(t, "repair")
		holds = append(holds, h.end(t)...)
		for node, things := range h.has(t) {
			for _, thing := range things {
				want[store.Claims+thing] = h.name + "/" + node
			}
		}
	}
	for _, found := range storetest.Twice(holds) {
		t.Error(found)
	}
	settles(t, admin, want)
	history, err := storetest.ReadHistory(t.Context(), admin)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range history.Violations {
		t.Error(v)
	}
	for _, h := range hosts {
		t.Logf("host %s: exit codes of apply %v, of rm %v", h.name, h.codes["apply"], h.codes["rm"])
	}
	t.Logf("%d revisions, %d claims, %d given up; %d nodes at the end", history.Revisions, history.Claimed, history.Released, len(want)/3)
	for _, h := range hosts {
		for node := range h.has(t) {
			if code := h.berth(t, "rm", "--force", node); code != 0 {
				t.Errorf("host %s: rm %s ends with %d", h.name, node, code)
			}
		}
	}
	settles(t, admin, map[string]string{})
}

// settles waits until exactly these claims are in the store: what was given up while the store or an agent was away is told
// after.
func settles(t *testing.T, s store.Store, want map[string]string) {
	t.Helper()
	begin, diff := time.Now(), ""
	if !testkit.Happens(func() bool {
		h, err := storetest.ReadHistory(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		diff = differ(h.Held, want)
		return diff == ""
	}) {
		t.Errorf("after %s the claims are not those of the nodes:\n%s", testkit.Bound(), diff)
	}
	t.Logf("settled after %s", time.Since(begin).Round(time.Millisecond))
}

func differ(got, want map[string]string) (text string) {
	for key, who := range got {
		if want[key] != who {
			text += fmt.Sprintf("%s is %s's, should be %q\n", key, who, want[key])
		}
	}
	for key, who := range want {
		if got[key] == "" {
			text += fmt.Sprintf("%s is nobody's, should be %s\n", key, who)
		}
	}
	return text
}

func number(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func openEtcd(t *testing.T, endpoint string) *etcd.Store {
	t.Helper()
	s, err := etcd.Open(etcd.Config{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, out)
	}
	return string(out)
}
