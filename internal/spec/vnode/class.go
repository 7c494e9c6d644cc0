package vnode

// Standing holds the settings that a class gives a node. The first part applies to the cgroup that all nodes of the
// class share. The kernel shares resources between sibling groups only. So on a busy host a node's part depends on the
// weight of that group beside the host's services, not on groups inside it. The second part applies to each node;
// settings in the spec override it.
type Standing struct {
	Idle      bool   // CPU time only if nothing else wants it
	CPUWeight int    // 1..10000, 100 is normal; 0: not set
	IOWeight  int    // likewise, for every disk whose engine shares by weight
	IOPolicy  string // "idle": the I/O priority of the nodes' requests, set by io.prio.class and on their processes

	LowShare int // percent of memory.max that is protected from reclaim (memory.low)
	OOMScore int // oom_score_adj of the node's processes

	NetPriority Priority // of the packets that its interfaces send; "": normal
}

// Standing returns the settings of a class: the table of docs/classes.md.
func (c Class) Standing() Standing {
	switch c {
	case Batch:
		// 1 is the least weight; "idle" is what ionice -c 3 gives.
		return Standing{Idle: true, IOWeight: 1, IOPolicy: "idle", OOMScore: 500, NetPriority: Low}
	case Storage:
		// 10 times the normal weight, which is also the most that BFQ has.
		return Standing{CPUWeight: 1000, IOWeight: 1000, LowShare: 50, OOMScore: -500, NetPriority: High}
	}
	// 1 and not 0: crun 1.8 treats 0 as unset, and the node would inherit the caller's value.
	return Standing{OOMScore: 1}
}

// Rank orders classes: where something is short, a higher one goes first.
func (c Class) Rank() int {
	switch c {
	case Batch:
		return -1
	case Storage:
		return 1
	}
	return 0
}

// Standing returns the settings of the node's class, with those of its spec in their place.
func (n *Node) Standing() Standing {
	s := n.Class.Standing()
	if n.CPU.Idle != nil {
		s.Idle = *n.CPU.Idle
	}
	if n.OOMScoreAdj != nil {
		s.OOMScore = *n.OOMScoreAdj
	}
	return s
}

// StandingGroup returns the name of the node's group beside the host's services; layout.Layout.StandingCgroup makes the path
// of a cgroup from it. Nodes with the same standing share one group. "" is the group of nodes without a class.
func (n *Node) StandingGroup() string {
	switch s := n.Standing(); {
	case s.Idle == n.Class.Standing().Idle:
		return string(n.Class)
	case s.Idle && n.Class == "":
		return "idle"
	case s.Idle:
		return string(n.Class) + "-idle"
	default:
		return string(n.Class) + "-busy"
	}
}

// ProtectedMemory returns how many bytes of the node's memory its class protects from reclaim: a share of memory.max.
// It is 0 if the spec sets memory.low or memory.min itself.
func (n *Node) ProtectedMemory() Bytes {
	if n.Memory.Low != 0 || n.Memory.Min != 0 {
		return 0
	}
	share := Bytes(n.Class.Standing().LowShare)
	low := n.Memory.Max/100*share + n.Memory.Max%100*share/100
	return low - low%(1<<20)
}
