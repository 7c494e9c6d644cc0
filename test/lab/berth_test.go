package lab_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"berth/test/lab"
)

// start starts one machine with berth in it.
func start(t *testing.T, m lab.Machine) *lab.VM {
	t.Helper()
	vm := lab.Start(t, lab.Options{Machines: []lab.Machine{m}}).VM(0)
	berth := filepath.Join(t.TempDir(), "berth")
	if err := lab.BuildBerth(context.Background(), berth); err != nil {
		t.Fatal(err)
	}
	vm.Copy(t, berth, "/usr/local/bin/berth")
	return vm
}

// node applies a spec, and removes the node at the end of the test.
func node(t *testing.T, m *lab.VM, spec string) {
	t.Helper()
	m.Write(t, "/root/node.yaml", spec)
	m.OK(t, "berth apply -f /root/node.yaml")
	name := strings.TrimSpace(strings.TrimPrefix(strings.SplitN(strings.TrimSpace(spec), "\n", 2)[0], "name:"))
	t.Cleanup(func() { m.OK(t, "berth rm --force "+name) })
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
