// Package proof lists the kinds of limits, and says what a proved limit is: a spec asks for it, a mechanism honours it, and it is
// read back from the kernel.
package proof

import "strings"

// Limit is one limit of a node or of a service, as berth show prints it.
type Limit struct {
	Key      string `json:"key"`         // as berth set takes it: "memory.max", "io.data.read.rate"
	Asked    string `json:"asked"`       // as the spec writes it; "max" for no limit
	ReadBack string `json:"read_back"`   // the value in force, as read from the kernel; "" if it was not read
	By       string `json:"honoured_by"` // the mechanism that enforces it: "cfs quota", "io.max", "tbf"
	Note     string `json:"note,omitempty"`
	Holds    bool   `json:"holds"`         // ReadBack is the value that was asked for, apart from the kernel's rounding, and is in force for all processes
	Why      string `json:"why,omitempty"` // it does not hold, where ReadBack does not say so
}

// NothingHere is By of a value that a node's class brings and for which this host has no mechanism. Such a value is left out, and
// the node runs without it: what a spec asks for by name is refused instead.
const NothingHere = "nothing here"

// Applies reports whether this host has a mechanism for the limit, so that it can be wrong that it does not hold.
func (l Limit) Applies() bool { return l.By != NothingHere }

// Prover is a step that sets limits.
type Prover interface {
	// Proved returns the limits as Verify has read them back.
	Proved() []Limit
}

// Kind is a kind of limit: a key of the spec without the names in it. A mechanism refuses a kind that it does not know.
type Kind string

// The kinds.
const (
	CPUWeight     Kind = "cpu.weight"
	CPUMax        Kind = "cpu.max"
	CPUSet        Kind = "cpu.set"
	NUMA          Kind = "cpu.numa"
	MemoryMax     Kind = "memory.max"
	MemoryHigh    Kind = "memory.high"
	MemoryLow     Kind = "memory.low"
	MemoryMin     Kind = "memory.min"
	MemorySwap    Kind = "memory.swap"
	PIDs          Kind = "pids"
	HugePages     Kind = "hugepages"
	IOWeight      Kind = "io.weight"
	IOReadRate    Kind = "io.read.rate"
	IOReadIOPS    Kind = "io.read.iops"
	IOWriteRate   Kind = "io.write.rate"
	IOWriteIOPS   Kind = "io.write.iops"
	NetTX         Kind = "net.tx"
	NetRX         Kind = "net.rx"
	NetPriority   Kind = "net.priority"
	RLimit        Kind = "rlimits"
	MachineMemory Kind = "machine.memory"
)

// Key returns the key of the limit of this kind that has a name: "io.data.read.rate" of IOReadRate and "data",
// "rlimits.nofile" of RLimit and "nofile".
func (k Kind) Key(name string) string {
	first, rest, more := strings.Cut(string(k), ".")
	if !more {
		return first + "." + name
	}
	return first + "." + name + "." + rest
}
