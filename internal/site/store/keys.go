package store

import "strings"

// Root begins all keys of Berth, so that an etcd may serve others too. Its number changes when an older berthd could not read
// what is below.
const Root = "/berth/v1/"

// The prefixes of the keys; docs/cluster-state.md describes the entries below each.
const (
	Hosts       = Root + "hosts/"       // HOST; goes with the host's session
	Members     = Root + "members/"     // HOST
	Nodes       = Root + "nodes/"       // HOST/NODE
	Filesystems = Root + "filesystems/" // HOST/FS
	IO          = Root + "io/"          // HOST/NODE
	Offices     = Root + "offices/"     // NAME; goes with the session of the host that has it
	Claims      = Root + "claims/"      // mac/…, address/…, name/…
)

// Key joins a prefix and the parts of a key below it. A part must not be empty or hold a slash: names of hosts and nodes, MACs
// and addresses do not.
func Key(prefix string, parts ...string) string { return prefix + strings.Join(parts, "/") }

// Below returns the parts of a key below a prefix; nil if it is not below it.
func Below(prefix, key string) []string {
	rest, ok := strings.CutPrefix(key, prefix)
	if !ok || rest == "" {
		return nil
	}
	return strings.Split(rest, "/")
}
