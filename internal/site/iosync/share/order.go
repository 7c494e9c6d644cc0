package share

import "slices"

// byServer sorts the pairs by server, and within a server by class, the highest first.
func (s *Site) byServer() {
	s.first = sized(s.first, len(s.Servers)+1)
	s.order = sized(s.order, len(s.Pairs))
	clear(s.first)
	for i := range s.Pairs {
		s.first[s.Pairs[i].Server+1]++
	}
	for i := range s.Servers {
		s.first[i+1] += s.first[i]
	}
	next := slices.Clone(s.first)
	for _, class := range s.classes() {
		for _, n := range s.Nodes {
			if n.Class != class {
				continue
			}
			for i := n.First; i < n.Past; i++ {
				at := s.Pairs[i].Server
				s.order[next[at]] = i
				next[at]++
			}
		}
	}
	s.owner = sized(s.owner, len(s.Pairs))
	for i, n := range s.Nodes {
		for k := n.First; k < n.Past; k++ {
			s.owner[k] = i
		}
	}
}

// classes lists the classes of the nodes, the highest first.
func (s *Site) classes() []int {
	var all []int
	for _, n := range s.Nodes {
		if !slices.Contains(all, n.Class) {
			all = append(all, n.Class)
		}
	}
	slices.Sort(all)
	slices.Reverse(all)
	return all
}

// On lists the pairs of a server. They are valid until the next Begin.
func (s *Site) On(server int) []int { return s.order[s.first[server]:s.first[server+1]] }

// Owner returns the number of a pair's node.
func (s *Site) Owner(pair int) int { return s.owner[pair] }

func (s *Site) nodeOf(pair int) *Node { return &s.Nodes[s.owner[pair]] }
func (s *Site) classOf(pair int) int  { return s.nodeOf(pair).Class }

// sized is a slice of this length; its content is not defined.
func sized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
