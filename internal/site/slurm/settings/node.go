package settings

import (
	"fmt"
	"strconv"
	"strings"

	"berth/internal/sys/refuse"
)

// Prefix returns what the names of a host's nodes begin with: the first label of the host's name.
func Prefix(host string) string {
	prefix, _, _ := strings.Cut(host, ".")
	return prefix
}

// NodeName returns the name of the node in a slot of a host, both in Slurm and in Berth: HOST-NN. Slots count from 1. Two digits, and more only
// from slot 100 on: a host that gets more slots keeps the names of those it has.
func NodeName(host string, slot int) string { return fmt.Sprintf("%s-%02d", Prefix(host), slot) }

// SplitNode splits the name of a node into the prefix of its host (see Prefix) and the slot. ok is false for a name that NodeName does not
// make.
func SplitNode(node string) (prefix string, slot int, ok bool) {
	i := strings.LastIndexByte(node, '-')
	if i < 1 {
		return "", 0, false
	}
	slot, err := strconv.Atoi(node[i+1:])
	if err != nil || slot < 1 || NodeName(node[:i], slot) != node {
		return "", 0, false
	}
	return node[:i], slot, true
}

// Find returns the host and the group of a node. The error is a refusal of kind NotFound: no host of the settings has such a node.
func (s *Settings) Find(node string) (host string, g *Group, err error) {
	prefix, slot, ok := SplitNode(node)
	for i := range s.Hosts {
		g := &s.Hosts[i]
		for _, host := range g.Hosts {
			switch {
			case !ok || Prefix(host) != prefix:
			case g.Slots > 0 && slot > g.Slots:
				return "", nil, refuse.NotFoundf("%s is no node of Slurm's here: host %s has %d slots", node, host, g.Slots)
			default:
				return host, g, nil
			}
		}
	}
	return "", nil, refuse.NotFoundf("%.80s is no node of Slurm's here: no host in slurm.yaml has a node of this name", node)
}
