package node

import (
	"berth/internal/node/health"
	"berth/internal/node/history"
	"berth/internal/node/inspect"
	"berth/internal/node/records"
)

// Other rooms use these types of package node, and need not know which of its packages defines them.
type (
	// Stored is the record of a node.
	Stored = records.Stored
	// Status is the status of a node.
	Status = records.Status
	// Row is an interface of a node, as a managed network must know it.
	Row = records.Row
	// Exit is how a node ended.
	Exit = history.Exit
	// Health is the result of a node's health checks.
	Health = health.Health
	// Device is a device of the host that a node has.
	Device = inspect.Device
	// Lease is an address that a node has by DHCP.
	Lease = inspect.Lease
	// Spoof says what limits an interface to its own addresses.
	Spoof = inspect.Spoof
)

// The states of a node.
const (
	Running = records.Running
	Paused  = records.Paused
	Stopped = records.Stopped
	Exited  = records.Exited
)

// RanWell is how long a node runs after which its restarts are forgotten.
const RanWell = history.RanWell
