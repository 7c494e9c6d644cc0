package cgroup

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host"
	"berth/internal/host/group/grouptest"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

func numaHost(h host.Cgroups) host.Cgroups {
	h.NUMA = map[int]host.NUMANode{0: {CPUs: "0-1", Memory: true}, 1: {CPUs: "2-3", Memory: true}, 2: {Memory: true}}
	return h
}

func TestNUMARefusals(t *testing.T) {
	tests := []struct {
		name string
		cpu  vnode.CPU
		want string
	}{
		{"no such node", vnode.CPU{NUMA: ptr(3)}, "cpu.numa 3: this host has NUMA nodes 0, 1, 2"},
		{"memory alone", vnode.CPU{NUMA: ptr(2)}, "cpu.numa 2: NUMA node 2 of this host lacks CPUs or memory"},
		{"nothing in both", vnode.CPU{NUMA: ptr(1), Set: "0-1"}, "cpu.numa 1 with cpu.set 0-1: no CPU is in both; NUMA node 1 has CPUs 2-3"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Steps(&vnode.Node{CPU: tt.cpu}, numaHost(grouptest.V2()), "berth/x", nil)
			if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(fmt.Sprint(err), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestNUMA(t *testing.T) {
	for _, tt := range []struct {
		name string
		cpu  vnode.CPU
		host host.Cgroups
		want string
	}{
		{"NUMA", vnode.CPU{NUMA: new(1)}, numaHost(grouptest.V2()), `
cgroup.limit cpu.set 2-3 → cpuset.cpus=2-3 (the CPUs of NUMA node 1)
cgroup.limit cpu.numa 1 → cpuset.mems=1
`},
		{"NUMA and a set", vnode.CPU{NUMA: new(1), Set: "1-2"}, numaHost(grouptest.V1()), `
cgroup.limit cpu.set 1-2 → cpuset.cpus=2 (those of them that NUMA node 1 has)
cgroup.limit cpu.numa 1 → cpuset.mems=1
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			steps, err := Steps(&vnode.Node{Name: "x", CPU: tt.cpu}, tt.host, "berth/x", nil)
			testkit.Must(t, err)
			if diff := cmp.Diff(tt.want, "\n"+lines(steps)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestClassMemory protects memory of a node of class storage, unless its spec says itself what is protected.
func TestClassMemory(t *testing.T) {
	for _, tt := range []struct {
		name   string
		memory vnode.Memory
		host   host.Cgroups
		want   string
	}{
		{"storage on v2", vnode.Memory{Max: 1 << 30}, grouptest.V2(), `
cgroup.limit memory.max 1GiB → memory.max=1073741824
cgroup.limit memory.low 512MiB → memory.low=536870912 (from class storage: 50 % of memory.max)
`},
		{"storage, with another low", vnode.Memory{Max: 1 << 30, Min: 1 << 28}, grouptest.V2(), `
cgroup.limit memory.max 1GiB → memory.max=1073741824
cgroup.limit memory.min 256MiB → memory.min=268435456
`},
		{"storage on v1", vnode.Memory{Max: 1 << 30}, grouptest.V1(), `
cgroup.limit memory.max 1GiB → memory.kmem.tcp.limit_in_bytes=268435456 memory.limit_in_bytes=1073741824 (cgroup v1 counts TCP and UDP buffers apart: at most 256MiB beside it)
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			steps, err := Steps(&vnode.Node{Name: "x", Class: vnode.Storage, Memory: tt.memory}, tt.host, "berth.storage/x", nil)
			testkit.Must(t, err)
			if diff := cmp.Diff(tt.want, "\n"+lines(steps)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
