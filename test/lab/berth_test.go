package lab_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"berth/test/built"
	"berth/test/lab"
)

// start starts one machine with berth in it.
func start(t *testing.T, m lab.Machine) *lab.VM {
	t.Helper()
	vm := lab.Start(t, lab.Options{Machines: []lab.Machine{m}}).VM(0)
	install(t, vm)
	return vm
}

// install puts berth into a machine, with the choice of a runtime.
func install(t *testing.T, m *lab.VM) {
	t.Helper()
	berth := filepath.Join(t.TempDir(), "berth")
	if err := built.Berth(context.Background(), berth); err != nil {
		t.Fatal(err)
	}
	m.Copy(t, berth, "/usr/local/bin/berth")
	choose(t, m, "/var/lib/berth")
}

// choice is what the first machine of this process chose.
var choice struct {
	sync.Mutex
	text string
}

// choose gives berth in a machine the choice of a runtime in its folder for lasting files. Berth makes the choice by running six
// containers, which takes an emulated machine 8 s of CPU time. All machines have the same kernel and runtimes, so only the first
// one makes it; another boot would refuse it, so it gets this boot's id.
func choose(t *testing.T, m *lab.VM, lib string) {
	t.Helper()
	choice.Lock()
	defer choice.Unlock()
	if choice.text == "" {
		m.Write(t, "/root/any.yaml", "name: any\nimage: host\ncommand: [sleep, infinity]\n")
		choice.text = m.OK(t, "berth plan -f /root/any.yaml >/dev/null; cat /var/lib/berth/runtime.json; rm /root/any.yaml")
	}
	boot := m.OK(t, "cat /proc/sys/kernel/random/boot_id")
	m.OK(t, "modprobe overlay; mkdir -p -m 0700 "+lib) // as the choice does
	m.Write(t, lib+"/runtime.json", bootID.ReplaceAllString(choice.text, "${1}"+boot+"${2}"))
}

var bootID = regexp.MustCompile(`("boot_id": *")[^"]*(")`)

// node applies a spec, and removes the node at the end of the test.
func node(t *testing.T, m *lab.VM, spec string) {
	t.Helper()
	m.Write(t, "/root/node.yaml", spec)
	m.OK(t, "berth apply -f /root/node.yaml")
	t.Cleanup(func() { m.OK(t, "berth rm --force "+nameOf(spec)) })
}

// nodes is node for several specs at once.
func nodes(t *testing.T, m *lab.VM, specs ...string) {
	t.Helper()
	apply, all := "", ""
	for _, spec := range specs {
		name := nameOf(spec)
		m.Write(t, "/root/"+name+".yaml", spec)
		apply, all = apply+"berth apply -f /root/"+name+".yaml & p=\"$p $!\"\n", all+" "+name
	}
	m.OK(t, apply+"for i in $p; do wait $i; done")
	t.Cleanup(func() { m.OK(t, "berth rm --force"+all) })
}

// nameOf returns the name in a spec's first line.
func nameOf(spec string) string {
	first, _, _ := strings.Cut(strings.TrimSpace(spec), "\n")
	return strings.TrimSpace(strings.TrimPrefix(first, "name:"))
}

// shown is the part of berth show --json that these tests look at.
type shown struct {
	State  string
	PID    int
	IDs    string
	Limits []struct {
		Key, Asked string
		ReadBack   string `json:"read_back"`
		HonouredBy string `json:"honoured_by"`
		Holds      bool
	}
	Exit *struct {
		Code         int
		Signal       string
		OOM, Unknown bool
	}
	Links []struct{ Name, MAC string }
}

func show(t *testing.T, m *lab.VM, name string) shown {
	t.Helper()
	var s shown
	text := m.OK(t, "berth show --json "+name)
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return s
}

// files reads files of a cgroup. It returns their contents by name.
func files(t *testing.T, m *lab.VM, dir string, names ...string) map[string]string {
	t.Helper()
	got := map[string]string{}
	for line := range strings.Lines(m.OK(t, "cd "+dir+"; grep -s '' "+strings.Join(names, " ")+" /dev/null || true")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if got[name] != "" {
			value = got[name] + "\n" + value
		}
		got[name] = value
	}
	return got
}
