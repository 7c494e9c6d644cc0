// Command benchnodes makes many nodes with an interface on the bridge between nodes, lists and removes them, and reports the
// times and the memory (make bench-nodes). It exits with 1 when nodes do not reach each other or something is left behind.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"berth/internal/bench/starts"
	"berth/internal/sys/layout"
	"berth/tools/many"
)

type result struct {
	Nodes      int       `json:"nodes"`
	AtOnce     int       `json:"at_once"`
	Start      float64   `json:"start_s"`
	Each       []float64 `json:"start_each_ms"` // by node number
	List       float64   `json:"ls_ms"`
	Exec       float64   `json:"exec_ms"`
	Remove     float64   `json:"remove_s"`
	MemoryNode float64   `json:"memory_kib_a_node"` // of the whole host, including processes
	Ports      int       `json:"links_of_the_bridge"`
	HostLinks  int       `json:"links_more_on_the_host"`
}

type nodes struct {
	berth, root string
	layout      layout.Layout
	specs       string
	result
}

func main() {
	m := &nodes{}
	flag.IntVar(&m.Nodes, "n", 2000, "nodes")
	flag.IntVar(&m.AtOnce, "at-once", 4, "commands at a time")
	flag.StringVar(&m.berth, "berth", "build/berth", "the berth to measure")
	dir := flag.String("dir", "/dev/shm", "where all is kept: a tmpfs, as /run is on most hosts")
	out := flag.String("json", "", "write the figures to `FILE`")
	flag.Parse()
	if err := m.run(*dir, *out); err != nil {
		fmt.Fprintln(os.Stderr, "benchnodes:", err)
		os.Exit(1)
	}
}

func (m *nodes) run(dir, out string) (err error) {
	if m.berth, err = filepath.Abs(m.berth); err != nil {
		return err
	}
	if dir, err = os.MkdirTemp(dir, "berth-bench-nodes-"); err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = os.RemoveAll(dir)
		}
	}()
	if err := os.Chmod(dir, 0o711); err != nil { // the mapped ids of nodes need to traverse it
		return err
	}
	image := filepath.Join(dir, "image")
	if err := starts.BusyboxRoot(image); err != nil {
		return err
	}
	m.root, m.specs = filepath.Join(dir, "root"), filepath.Join(dir, "specs")
	m.layout = layout.New(m.root)
	if err := os.Mkdir(m.specs, 0o700); err != nil {
		return err
	}
	for i := range m.Nodes {
		text := fmt.Sprintf("name: %s\nimage: dir:%s\ncommand: [/bin/sleep, '100000']\nnetwork: [{address: [%s/16]}]\n", node(i), image, address(i))
		if err := os.WriteFile(filepath.Join(m.specs, node(i)), []byte(text), 0o600); err != nil {
			return err
		}
	}
	err = m.measure()
	if _, statErr := os.Stat(m.layout.LibNodes()); statErr == nil {
		err = errors.Join(err, m.removeAll())
	}
	if err == nil {
		err = m.nothingLeft()
	}
	m.print()
	if text, jsonErr := json.MarshalIndent(m.result, "", "  "); jsonErr == nil && out != "" {
		err = errors.Join(err, os.WriteFile(out, append(text, '\n'), 0o644))
	}
	return err
}

func node(i int) string    { return fmt.Sprintf("n%05d", i) }
func address(i int) string { return fmt.Sprintf("10.20.%d.%d", (i+1)/250, (i+1)%250+1) }

func (m *nodes) measure() error {
	memory, links := many.Available(), hostLinks()
	m.Each = make([]float64, m.Nodes)
	began := time.Now()
	err := many.Each(m.Nodes, m.AtOnce, func(i int) error {
		start := time.Now()
		_, err := m.call("apply", "-f", filepath.Join(m.specs, node(i)))
		m.Each[i] = float64(time.Since(start).Microseconds()) / 1000
		return err
	})
	if err != nil {
		return err
	}
	m.Start = time.Since(began).Seconds()
	m.MemoryNode = float64(memory-many.Available()) / float64(m.Nodes)
	m.HostLinks = hostLinks() - links
	if text, err := exec.Command("nsenter", "--net="+m.layout.Hub(), "cat", "/proc/net/dev").Output(); err == nil {
		m.Ports = bytes.Count(text, []byte("berth-"))
	}
	start := time.Now()
	text, err := m.call("ls")
	m.List = float64(time.Since(start).Microseconds()) / 1000
	if running := strings.Count(text, " running "); err == nil && running != m.Nodes || strings.Contains(text, "NOT-CONNECTED") {
		err = fmt.Errorf("ls says that %d nodes run:\n%s", running, text)
	}
	if err != nil {
		return err
	}
	for _, pair := range [][2]int{{0, m.Nodes - 1}, {m.Nodes - 1, 0}, {m.Nodes / 2, m.Nodes - 1}} {
		start := time.Now()
		// A refused connection proves that the other node was reached.
		text, _ := m.call("exec", node(pair[0]), "--", "/bin/busybox", "nc", "-w", "5", address(pair[1]), "9")
		m.Exec = float64(time.Since(start).Microseconds()) / 1000
		if !strings.Contains(text, "refused") {
			return fmt.Errorf("%s does not reach %s: %s", node(pair[0]), node(pair[1]), text)
		}
	}
	return nil
}

// removeAll removes the nodes that exist.
func (m *nodes) removeAll() error {
	began := time.Now()
	err := many.Each(m.Nodes, m.AtOnce, func(i int) error {
		if _, err := os.Stat(m.layout.Node(node(i)).Lib); err != nil {
			return nil //nolint:nilerr // it was not made
		}
		_, err := m.call("rm", "--force", node(i))
		return err
	})
	m.Remove = time.Since(began).Seconds()
	return err
}

// nothingLeft returns an error if the bridge, files or mounts of the nodes are left.
func (m *nodes) nothingLeft() error {
	if _, err := os.Stat(m.layout.Hub()); err == nil {
		return fmt.Errorf("the bridge between nodes is left at %s", m.layout.Hub())
	}
	for _, dir := range []string{m.layout.LibNodes(), m.layout.RunNodes(), m.layout.IDs(), m.layout.MACs(), m.layout.Addresses()} {
		if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
			return fmt.Errorf("%d entries are left in %s", len(entries), dir)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err == nil && strings.Contains(string(mounts), m.root) {
		err = errors.New("a mount is left below " + m.root)
	}
	return err
}

func (m *nodes) call(args ...string) (string, error) {
	text, err := exec.Command(m.berth, append([]string{"--root", m.root}, args...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("berth %s: %w: %s", strings.Join(args, " "), err, text)
	}
	return string(text), err
}

func (m *nodes) print() {
	fmt.Printf("%d nodes, %d at a time: started in %.1f s (%.1f ms a node of the first hundred, %.1f of the last, by the clock of one command)\n",
		m.Nodes, m.AtOnce, m.Start, mean(m.Each[:min(100, len(m.Each))]), mean(m.Each[max(0, len(m.Each)-100):]))
	fmt.Printf("ls %.0f ms, exec and a connection %.0f ms; %.0f KiB a node, processes included; %d ports, %d links more on the host\n",
		m.List, m.Exec, m.MemoryNode, m.Ports, m.HostLinks)
	fmt.Printf("removed in %.1f s\n", m.Remove)
}

func mean(all []float64) (sum float64) {
	for _, v := range all {
		sum += v / float64(len(all))
	}
	return sum
}

func hostLinks() int {
	text, _ := os.ReadFile("/proc/net/dev")
	return bytes.Count(text, []byte(":"))
}
