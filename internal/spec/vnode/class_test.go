package vnode

import "testing"

func TestStandingOfNodes(t *testing.T) {
	tests := []struct {
		name   string
		node   Node
		group  string
		oom    int
		memory Bytes
	}{
		{"no class", Node{Memory: Memory{Max: 1 << 30}}, "", 1, 0},
		{"batch", Node{Class: Batch, Memory: Memory{Max: 1 << 30}}, "batch", 500, 0},
		{"storage", Node{Class: Storage, Memory: Memory{Max: 1 << 30}}, "storage", -500, 512 << 20},
		{"storage without memory.max", Node{Class: Storage}, "storage", -500, 0},
		{"storage that says what is protected", Node{Class: Storage, Memory: Memory{Max: 1 << 30, Low: 1 << 20}}, "storage", -500, 0},
		{"whole MiB", Node{Class: Storage, Memory: Memory{Max: 3 << 20}}, "storage", -500, 1 << 20},
		{"the greatest memory", Node{Class: Storage, Memory: Memory{Max: 1<<63 - 1}}, "storage", -500, 1<<62 - 1<<20},
		{"batch, not idle", Node{Class: Batch, CPU: CPU{Idle: new(false)}}, "batch-busy", 500, 0},
		{"batch, as it is", Node{Class: Batch, CPU: CPU{Idle: new(true)}}, "batch", 500, 0},
		{"idle alone", Node{CPU: CPU{Idle: new(true)}}, "idle", 1, 0},
		{"not idle, as it is", Node{CPU: CPU{Idle: new(false)}}, "", 1, 0},
		{"storage, idle", Node{Class: Storage, CPU: CPU{Idle: new(true)}}, "storage-idle", -500, 0},
		{"killed first", Node{Class: Storage, OOMScoreAdj: new(1000)}, "storage", 1000, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.node.StandingGroup(); got != tt.group {
				t.Errorf("group %q, want %q", got, tt.group)
			}
			if got := tt.node.Standing().OOMScore; got != tt.oom {
				t.Errorf("oom_score_adj %d, want %d", got, tt.oom)
			}
			if got := tt.node.ProtectedMemory(); got != tt.memory {
				t.Errorf("protected memory %d, want %d", got, tt.memory)
			}
		})
	}
}

// TestClassIsNotLive: class, cpu.idle and oom_score_adj cannot change while a node runs.
func TestClassIsNotLive(t *testing.T) {
	for key, n := range map[string]*Node{
		"class":         {Class: Batch},
		"cpu.idle":      {CPU: CPU{Idle: new(true)}},
		"oom_score_adj": {OOMScoreAdj: new(5)},
	} {
		diffs := Diff(&Node{}, n)
		if len(diffs) != 1 || diffs[0].Key != key || diffs[0].Live {
			t.Errorf("%s: %+v", key, diffs)
		}
	}
}
