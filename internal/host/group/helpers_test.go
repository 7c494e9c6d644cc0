package group

import (
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"berth/internal/host"
	"berth/internal/host/group/grouptest"
	"berth/internal/sys/fork"
	"berth/test/testkit"
)

// TestKernelHelpers starts a helper beside the processes of a container, on this host and on its v2 tree alone. On v2 each has
// a group of its own inside the node's; on v1 they share it. Both end with the node's group.
func TestKernelHelpers(t *testing.T) {
	hosts := map[string]func(t *testing.T) (h host.Cgroups, root, helpers string){
		"all hierarchies": func(t *testing.T) (host.Cgroups, string, string) {
			h := grouptest.Host(t)
			if len(h.V1) == 0 {
				t.Skip("no cgroup v1")
			}
			return h, "", ""
		},
		"v2 alone": func(t *testing.T) (host.Cgroups, string, string) {
			h := grouptest.Host(t)
			if h.V2 == "" {
				t.Skip("no cgroup v2 tree")
			}
			return host.Cgroups{V2: h.V2, V2Controllers: h.V2Controllers, V2Enabled: h.V2Enabled}, "/node", "/helpers"
		},
	}
	for name, of := range hosts {
		t.Run(name, func(t *testing.T) {
			h, root, helpers := of(t)
			path := grouptest.Parent(t, h) + "/wn"
			steps, err := Steps(h, path)
			testkit.Must(t, err)
			for _, s := range steps {
				grouptest.Do(t, Kinds(), s)
			}
			made := steps[len(steps)-1].(*Group)
			if Container(h, path) != path+root || Helpers(h, path) != path+helpers {
				t.Errorf("container in %s, helpers in %s", Container(h, path), Helpers(h, path))
			}
			inside := grouptest.Enter(t, h, Container(h, path), "sleep 1000")
			var all []*exec.Cmd
			for range 2 { // the second finds the helpers' group there
				// A shell with a child: both are the node's.
				cmd := exec.Command("/bin/sh", "-c", "sleep 1000; :")
				testkit.Must(t, StartHelper(h, path, cmd))
				all = append(all, cmd)
				for _, hh := range Hierarchies(h) {
					if at, err := hh.GroupOf(cmd.Process.Pid); err != nil || at != path+helpers {
						t.Errorf("%s: the helper is in %q, %v", hh.Title(), at, err)
					}
				}
			}
			pids, err := Procs(h, path)
			testkit.Must(t, err)
			for _, cmd := range append(all, inside) {
				if !slices.Contains(pids, cmd.Process.Pid) {
					t.Errorf("process %d is not the node's: %v", cmd.Process.Pid, pids)
				}
			}
			if root != "" {
				if text := grouptest.Text(t, filepath.Join(h.V2, path, "cgroup.procs")); text != "" {
					t.Errorf("processes in the group that carries the limits: %s", text)
				}
			}
			done := make(chan struct{})
			go func() { // until it is waited for, a killed process is in its group
				defer close(done)
				_ = inside.Wait()
				for _, cmd := range all {
					_ = fork.Wait(cmd)
				}
			}()
			testkit.Must(t, made.Undo(t.Context()))
			<-done
			if There(h, path) {
				t.Error("the group is still there")
			}
		})
	}
}

// TestMoveHelper moves a process to the place of a node's helpers.
func TestMoveHelper(t *testing.T) {
	h := grouptest.Host(t)
	path := grouptest.Parent(t, h) + "/wn"
	steps, err := Steps(h, path)
	testkit.Must(t, err)
	for _, s := range steps {
		grouptest.Do(t, Kinds(), s)
	}
	gate, err := HelperGate(h, path)
	testkit.Must(t, err)
	gate.Close()
	cmd := exec.Command("sleep", "1000")
	testkit.Must(t, fork.Start(cmd))
	testkit.Must(t, MoveHelper(h, path, cmd.Process.Pid))
	for _, hh := range Hierarchies(h) {
		if at, err := hh.GroupOf(cmd.Process.Pid); err != nil || at != Helpers(h, path) {
			t.Errorf("%s: the helper is in %q, %v", hh.Title(), at, err)
		}
	}
	go fork.Wait(cmd) // the undo of the group kills it
	testkit.Must(t, steps[len(steps)-1].Undo(t.Context()))
}
