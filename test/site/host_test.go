package site

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"berth/internal/site/store/storetest"
	"berth/test/built"
	"berth/test/env"
	"berth/test/testkit"
)

// programs are what runs here.
type programs struct{ berth, agent, etcd string }

func build(t *testing.T) (p programs) {
	t.Helper()
	dir := t.TempDir()
	p.berth, p.agent = filepath.Join(dir, "berth"), filepath.Join(dir, "berthd")
	p.etcd = filepath.Join(dir, "etcd")
	if err := errors.Join(built.Berth(t.Context(), p.berth), built.Agent(t.Context(), dir), built.Etcd(t.Context(), dir)); err != nil {
		t.Fatal(err)
	}
	return p
}

// host is one host of the site: a root of its own with its agent.
type host struct {
	env.Berth
	name, bridge string
	agent        *storetest.Process

	mu    sync.Mutex
	codes map[string]map[int]int      // exit codes by command
	live  map[string][]storetest.Hold // of nodes that are there, by name
	done  []storetest.Hold
	busy  map[string]bool // nodes that a worker of this host works on
}

func newHost(t *testing.T, p programs, name, endpoint string) *host {
	t.Helper()
	h := &host{
		Berth: env.Berth{Program: p.berth, Root: testkit.Dir(t, "")}, name: name, bridge: fmt.Sprintf("bs%x%s", os.Getpid(), name),
		codes: map[string]map[int]int{"apply": {}, "rm": {}, "repair": {}}, live: map[string][]storetest.Hold{}, busy: map[string]bool{},
	}
	run(t, "ip", "link", "add", h.bridge, "type", "bridge")
	t.Cleanup(func() { run(t, "ip", "link", "del", h.bridge) })
	run(t, "ip", "link", "set", h.bridge, "up")
	t.Cleanup(func() {
		for node := range h.has(t) { // if the test failed before
			h.berth(t, "rm", "--force", node)
		}
	})
	h.startAgent(t, p, endpoint)
	return h
}

// The few things that all want.
const (
	names     = 6
	macs      = 5
	addresses = 5
)

// turn makes a node with a random name, MAC and address, keeps it for a moment, and mostly removes it.
func (h *host) turn(t *testing.T, random *rand.Rand) {
	node := fmt.Sprint("n", random.IntN(names))
	mac := fmt.Sprintf("02:00:5e:00:00:%02x", random.IntN(macs))
	address := fmt.Sprint("10.99.0.", 1+random.IntN(addresses))
	h.mu.Lock()
	if h.busy[node] || len(h.live[node]) > 0 && random.IntN(3) > 0 {
		h.mu.Unlock()
		time.Sleep(20 * time.Millisecond)
		return
	}
	h.busy[node] = true
	there := h.live[node]
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		h.busy[node] = false
		h.mu.Unlock()
	}()
	if len(there) == 0 {
		spec := fmt.Sprintf("name: %s\nimage: host\ncommand: [/bin/sleep, infinity]\nnetwork: [{mode: bridge, parent: %s, mac: %q, address: [%s/24]}]\n", node, h.bridge, mac, address)
		path := filepath.Join(h.Root, node+".yaml")
		if err := os.WriteFile(path, []byte(spec), 0o600); err != nil {
			t.Error(err)
			return
		}
		if h.berth(t, "apply", "-f", path) != 0 {
			return
		}
		now := time.Now()
		for _, thing := range []string{"name/" + node, "mac/" + mac, "address/" + address} {
			there = append(there, storetest.Hold{Thing: thing, Node: h.name + "/" + node, From: now})
		}
		h.mu.Lock()
		h.live[node] = there
		h.mu.Unlock()
		if random.IntN(3) == 0 {
			return // it stays for a while
		}
		time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
	}
	h.mu.Lock()
	for _, hold := range there {
		hold.To = time.Now()
		h.done = append(h.done, hold)
	}
	delete(h.live, node)
	h.mu.Unlock()
	h.berth(t, "rm", "--force", node)
}

// end closes the holds of nodes that stay, after it has looked that each of them runs.
func (h *host) end(t *testing.T) []storetest.Hold {
	t.Helper()
	running := h.ls(t)
	for node, holds := range h.live {
		if running[node] != "running" {
			t.Errorf("node %s of host %s is lost: %q", node, h.name, running[node])
		}
		for _, hold := range holds {
			hold.To = time.Now()
			h.done = append(h.done, hold)
		}
	}
	return h.done
}

// ls returns the state of each node.
func (h *host) ls(t *testing.T) map[string]string {
	t.Helper()
	out, err := h.Command("ls", "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []struct{ Name, State string }
	if err := json.Unmarshal(out, &all); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	states := map[string]string{}
	for _, n := range all {
		states[n.Name] = n.State
	}
	return states
}

// has returns by node what it holds, as the specs of the nodes say that are there.
func (h *host) has(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for node := range h.ls(t) {
		text, err := os.ReadFile(filepath.Join(h.Root, "lib", "nodes", node, "spec.json"))
		if err != nil {
			t.Errorf("node %s of host %s: %v", node, h.name, err)
			continue
		}
		var stored struct {
			Now struct {
				Network []struct {
					MAC     string
					Address []string
				}
			}
		}
		if err := json.Unmarshal(text, &stored); err != nil || len(stored.Now.Network) != 1 {
			t.Errorf("node %s of host %s: %v\n%s", node, h.name, err, text)
			continue
		}
		w := stored.Now.Network[0]
		address, _, _ := strings.Cut(w.Address[0], "/")
		all[node] = []string{"name/" + node, "mac/" + w.MAC, "address/" + address}
	}
	return all
}

// berth runs a command and returns its exit code, which it counts.
func (h *host) berth(t *testing.T, args ...string) int {
	cmd := h.Command(args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	err := cmd.Run()
	ended, failed := errors.AsType[*exec.ExitError](err)
	code := 0
	if failed {
		code = ended.ExitCode()
	} else if err != nil {
		t.Error(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.codes[args[0]][code]++; code != 0 && code != 5 && code != 3 {
		t.Logf("host %s: %s ends with %d: %.400s", h.name, strings.Join(args, " "), code, said.String())
	}
	return code
}

// killKeeper kills the host's keeper, if it has one now. Nodes run on; the next command starts another.
func (h *host) killKeeper() {
	for pid := range testkit.Processes("\x00--root\x00" + h.Root + "\x00keeper\x00") {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// startAgent starts the host's agent, and waits until commands claim through it.
func (h *host) startAgent(t *testing.T, p programs, endpoint string) {
	t.Helper()
	conf := fmt.Sprintf("host: %s\nsite: t\nlocal: true\nstore: {endpoints: [\"%s\"]}\n", h.name, endpoint)
	if err := os.WriteFile(filepath.Join(h.Root, "berthd.yaml"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	h.agent = storetest.Start(t, nil, p.agent, "--root", h.Root)
	joined := h.Layout().Site()
	testkit.Eventually(t, "the agent joins its site", func() bool {
		_, err := os.Stat(joined)
		return err == nil
	})
}
