//go:build !berthfault

package fault

// Point does nothing: only a binary built with the tag berthfault has fault points.
func Point(string) {}

// KeeperEnv returns env: only a binary built with the tag berthfault has fault points of the keeper's own.
func KeeperEnv(env []string) []string { return env }

// Boot returns id, the id of this boot: only a binary built with the tag berthfault can be told of another boot.
func Boot(id string) string { return id }
