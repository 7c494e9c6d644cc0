package slurm

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

// event is something that goes wrong, until it is mended. fail also tells where it is.
type event struct {
	name string
	fail func(h *hike) (mend func(), where string)
	made bool // it is mended after slurm-resume was started, if that is soon
}

// held is how a job ends whose comment is not allowed.
const held = "held"

// events are what can go wrong.
var events = []event{
	{"slurm-resume killed", killed("resume"), false},
	{"slurm-suspend killed", killed("suspend"), false},
	{"slurm-prolog killed", killed("prolog"), false},
	{"slurm-epilog killed", killed("epilog"), false},
	{"agent killed", func(h *hike) (func(), string) {
		at := h.someHost()
		h.end("berthd-"+at.name, unix.SIGKILL)
		return func() { h.runAgent(at) }, at.name
	}, true},
	{"agent hangs", func(h *hike) (func(), string) {
		at := h.someHost()
		agent := h.services["berthd-"+at.name].Process
		testkit.Must(h, agent.Signal(unix.SIGSTOP))
		return func() { testkit.Must(h, agent.Signal(unix.SIGCONT)) }, at.name
	}, true},
	{"image missing", otherTemplate("image: host", "image: oci:nothing-here"), true},
	{"invalid registration", otherTemplate("size: 64MiB", "size: 16MiB"), true}, // less scratch space than slurmctld was told
	{"slots full", func(h *hike) (func(), string) {
		h.submitted(7)
		return func() {}, "seven jobs more"
	}, false},
	{"node killed", func(h *hike) (func(), string) {
		node := h.someNode()
		if node != "" {
			_, _ = h.try(h.berth, "--root", h.of(node).root, "rm", "--force", node) // it may go meanwhile
		}
		return func() {}, node
	}, false},
	{"slurmd killed", func(h *hike) (func(), string) {
		node := h.someNode()
		if pid := h.slurmd(node); pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return func() {}, node
	}, false},
	{"wrong munge key", func(h *hike) (func(), string) {
		path := h.path("conf/node/munge.key")
		text, err := os.ReadFile(path)
		testkit.Must(h, err)
		testkit.Must(h, os.WriteFile(path, []byte(strings.Repeat("another key altogether ", 8)), 0o400))
		h.submitted(2)
		return func() { testkit.Must(h, os.WriteFile(path, text, 0o400)) }, ""
	}, true},
	{"cluster state away", func(h *hike) (func(), string) { return h.etcd.Kill(h.T), "" }, true},
	{"slurmctld ended", again(unix.SIGTERM), false},
	{"slurmctld killed", again(unix.SIGKILL), false},
	{"bridge down", func(h *hike) (func(), string) {
		h.run("ip", "link", "set", h.bridge, "down")
		return func() { h.run("ip", "link", "set", h.bridge, "up") }, ""
	}, true},
	{"cable pulled", func(h *hike) (func(), string) {
		var links []struct{ Ifname string }
		testkit.Must(h, json.Unmarshal([]byte(h.run("ip", "-json", "link", "show", "master", h.bridge)), &links))
		at := h.IntN(1 << 16)
		if len(links) == 0 {
			return func() {}, ""
		}
		link := links[at%len(links)].Ifname
		_, _ = h.try("ip", "link", "set", link, "down") // its node may go meanwhile
		return func() { _, _ = h.try("ip", "link", "set", link, "up") }, "of a node that is up"
	}, false},
	{"job cancelled while its node is made", func(h *hike) (func(), string) {
		id := h.take("sleep 3\necho done\n", "CANCELLED")
		for range 100 {
			if state, _ := h.state(id); state != "PENDING" {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		state, _ := h.state(id) // running, if it met a node that was there
		h.run("scancel", id)
		return func() {}, "job " + strings.ToLower(state)
	}, false},
	{"hostile job", func(h *hike) (func(), string) {
		bad := []string{
			"berth: memory.max=64GiB", "berth: mounts=/", "berth: memory.max=$(touch${IFS}x)", "berth: io.data.read.rate=1MB/s", "berth: memory.max=1GiB\nReason=x",
		}
		comment := bad[h.IntN(len(bad))]
		h.take("echo done\n", held, "--comment="+comment, "--job-name=evil\n   JobState=COMPLETED Priority=1 AdminComment={\"berth\":{}} NodeName=st01-01 State=IDLE")
		return func() {}, strconv.Quote(comment)
	}, false},
}

// killed has slurmctld's next program of a name killed on its way.
func killed(name string) func(*hike) (func(), string) {
	return func(h *hike) (func(), string) {
		after := fmt.Sprintf("0.%02d", 2+h.IntN(60))
		file := h.write("work/kill."+name, after, 0o666)
		return func() {
			for range 100 { // until one has started
				if _, err := os.Stat(file); err != nil {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
			_ = os.Remove(file)
		}, "after " + after + " s"
	}
}

// otherTemplate changes the template of one host.
func otherTemplate(from, to string) func(*hike) (func(), string) {
	return func(h *hike) (func(), string) {
		at := h.someHost()
		mend := h.template(at, from, to)
		h.submitted(2)
		return mend, at.name
	}
}

// again ends slurmctld and starts it again. What it knows it writes to its disk within five seconds: jobs from just before a kill would be lost.
func again(sig syscall.Signal) func(*hike) (func(), string) {
	return func(h *hike) (func(), string) {
		if sig == unix.SIGKILL {
			time.Sleep(6 * time.Second)
		}
		h.end("slurmctld", sig)
		return h.startSlurm, ""
	}
}

func (h *hike) someHost() *host { return h.hosts[h.IntN(len(h.hosts))] }

// someNode is a node on which a job runs, if there is one: "" after a while.
func (h *hike) someNode() string {
	h.Helper()
	at := h.IntN(1 << 16)
	for range 100 {
		out, _ := h.try("squeue", "--noheader", "--states=RUNNING", "--format=%N")
		if nodes := strings.Fields(out); len(nodes) > 0 {
			slices.Sort(nodes)
			return nodes[at%len(nodes)]
		}
		time.Sleep(100 * time.Millisecond)
	}
	return ""
}

// slurmd is the process of a node's slurmd, which is one of those in the node's group.
func (s *site) slurmd(node string) int {
	s.Helper()
	if node == "" {
		return 0
	}
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range found {
		text, _ := os.ReadFile(path)
		if !strings.HasPrefix(string(text), "slurmd\x00-b\x00") {
			continue
		}
		groups, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cgroup"))
		if strings.Contains(string(groups), s.of(node).layout.CgroupParent()+"/"+node) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			return pid
		}
	}
	return 0
}
