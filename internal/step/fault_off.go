//go:build !berthfault

package step

// Fault does nothing: only a binary built with the tag berthfault has fault points.
func Fault(string) {}

// KeeperEnv returns env: only a binary built with the tag berthfault treats the keeper's fault points apart.
func KeeperEnv(env []string) []string { return env }
