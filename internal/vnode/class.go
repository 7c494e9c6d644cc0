package vnode

// Standing is what a class gives a node. The first part holds for all nodes of the class together, beside everything
// else on the host: the kernel shares between sibling groups only, so what a node gets of a busy host is decided where
// its class's group stands beside the host's services, not inside. The second part is each node's own, and what the
// spec says about it is stronger.
type Standing struct {
	Idle      bool   // CPU time only where nobody else wants it
	CPUWeight int    // 1..10000, 100 is normal; 0: as it is
	IOWeight  int    // the same of every disk whose engine shares by weight
	IOPolicy  string // "idle": the nodes' requests have that I/O priority, by io.prio.class and by their processes' own

	LowShare int // percent of memory.max that is protected from reclaim (memory.low)
	OOMScore int // oom_score_adj of the node's processes

	NetPriority Priority // of what its interfaces send; "": normal
}

// Standing returns the values of a class: the table of docs/classes.md.
func (c Class) Standing() Standing {
	switch c {
	case Batch:
		// 1 is the least weight; "idle" is what ionice -c 3 gives.
		return Standing{Idle: true, IOWeight: 1, IOPolicy: "idle", OOMScore: 500, NetPriority: Low}
	case Storage:
		// 10 times the normal weight, which is also the most that BFQ has.
		return Standing{CPUWeight: 1000, IOWeight: 1000, LowShare: 50, OOMScore: -500, NetPriority: High}
	}
	// 1 and not 0: crun 1.8 takes 0 for nothing, and the node would have the caller's.
	return Standing{OOMScore: 1}
}

// Standing is what the node's class gives it, with what its spec says otherwise.
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

// Place names the group in which the node stands beside the host's services: one for all nodes with the same standing
// there. "" is that of nodes without a class.
func (n *Node) Place() string {
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

// ProtectedMemory is how much of its memory the class protects from reclaim, 0 for none: a share of memory.max, unless
// the spec says itself what is protected.
func (n *Node) ProtectedMemory() Bytes {
	if n.Memory.Low != 0 || n.Memory.Min != 0 {
		return 0
	}
	share := Bytes(n.Class.Standing().LowShare)
	low := n.Memory.Max/100*share + n.Memory.Max%100*share/100
	return low - low%(1<<20)
}
