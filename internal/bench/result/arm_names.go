package result

// The names of arms that have a meaning of their own.
const (
	Host  = "host"
	Node  = "node"
	Null  = "null"  // the reference a second time: how much two equal arms differ
	Asked = "asked" // what was asked for: the same number in each round
	// VirtualMachine is a node of kind machine.
	VirtualMachine = "machine"
)
