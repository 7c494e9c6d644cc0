package settings

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/internal/site/slurm/hostlist"
	"berth/internal/spec/roles"
	"berth/internal/spec/vnode"
)

// word matches the names that a cluster, partition, feature or account may have: Slurm's lists separate words by commas, and constraints
// join them by other signs.
var word = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}\z`) })

// unixGroup matches the names that a group of users may have, also one of a directory service.
var unixGroup = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,62}\z`) })

// IsWord reports whether Slurm can have s in its lists, as the name of a feature or partition.
func IsWord(s string) bool { return word().MatchString(s) }

// MostNodes is the most nodes that Slurm can send messages to: the greatest TreeWidth.
const MostNodes = 65533

// address is a name or an address that stands in parentheses in slurm.conf.
var address = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A[A-Za-z0-9.:_-]+\z`) })

// checker collects mistakes.
type checker struct{ all []vnode.Problem }

func (c *checker) bad(field, format string, a ...any) {
	c.all = append(c.all, vnode.Problem{Field: field, Msg: fmt.Sprintf(format, a...)})
}

func (c *checker) words(field string, all []string, are *regexp.Regexp) {
	for i, s := range all {
		at := fmt.Sprintf("%s[%d]", field, i)
		switch {
		case !are.MatchString(s):
			c.bad(at, "%.80q is not a word: letters, digits, '_', '-' and dots, at most 63", s)
		case slices.Index(all, s) < i:
			c.bad(at, "%s is there twice", s)
		}
	}
}

func (c *checker) within(field string, n, most int) {
	if n < 0 || n > most {
		c.bad(field, "%d is not allowed: 1 to %d", n, most)
	}
}

func (c *checker) oneOf(field, s string, words ...string) {
	if s != "" && !slices.Contains(words, s) {
		c.bad(field, "%.80q is not allowed: %s", s, strings.Join(words, " or "))
	}
}

// check returns the mistakes in settings that could be read.
func check(s *Settings) []vnode.Problem {
	c := &checker{}
	if s.Cluster != "" && (!IsWord(s.Cluster) || strings.ToLower(s.Cluster) != s.Cluster) {
		c.bad("cluster", "%.80q is no name of a cluster: lower-case letters, digits, '_', '-' and dots", s.Cluster)
	}
	c.controller(s)
	if s.User != "" && roles.CheckName(s.User) != nil {
		c.bad("user", "%v", roles.CheckName(s.User))
	}
	if s.Template != "" && vnode.CheckName(s.Template) != nil {
		c.bad("template", "%v", vnode.CheckName(s.Template))
	}
	for field, path := range map[string]string{"programs": s.Programs, "api.certs": s.API.Certs, "controller.state": s.Controller.State} {
		if path != "" && !isPath(path) {
			c.bad(field, "%q is no path from the root of the file system, without spaces and signs of slurm.conf", path)
		}
	}
	c.words("leave", s.Leave, word())
	c.oneOf("fill", s.Fill, Few, Spread)
	c.oneOf("addresses", s.Addresses, Told, DNS)
	c.within("warm", s.Warm, 100_000)
	c.power(s.Power)
	if len(s.Hosts) == 0 {
		c.bad("hosts", "missing: the hosts that nodes are made on")
	}
	c.groups(s.Hosts)
	c.partitions(s)
	return c.all
}

func (c *checker) controller(s *Settings) {
	given := s.Controller != Controller{}
	switch host := s.Controller.Host; {
	case given && host == "":
		c.bad("controller.host", "missing: the name of slurmctld's host")
	case given && !isHost(strings.ToLower(host)): // slurmctld compares it with the host's own name, capitals too
		c.bad("controller.host", "%.80q is no name of a host", host)
	}
	if a := s.Controller.Address; a != "" && !address().MatchString(a) {
		c.bad("controller.address", "%.80q is no address", a)
	}
	if given && s.Cluster == "" {
		c.bad("cluster", "missing: a slurm.conf names its cluster, and with controller one is made")
	}
}

func (c *checker) power(p Power) {
	c.within("power.resume_rate", p.ResumeRate, 1_000_000)
	c.within("power.suspend_rate", p.SuspendRate, 1_000_000)
	for field, d := range map[string]vnode.Duration{"power.idle": p.Idle, "power.resume_timeout": p.ResumeTimeout, "power.suspend_timeout": p.SuspendTimeout} {
		if time.Duration(d)%time.Second != 0 || time.Duration(d) > 18*time.Hour { // 16 bits of seconds
			c.bad(field, "%s is not allowed: whole seconds, at most 18h", d)
		}
	}
}

func (c *checker) groups(all []Group) {
	names, hosts, prefixes, nodes := map[string]bool{}, map[string]string{}, map[string]string{}, 0
	for i := range all {
		g := &all[i]
		at := fmt.Sprintf("hosts[%d]", i)
		switch name := g.called(); {
		case name == "" && g.Users != nil:
			c.bad(at, "name is missing: a group with several groups of users has one of its own")
		case name != "" && !IsWord(name):
			c.bad(at+".name", "%.80q is not a word: letters, digits, '_', '-' and dots, at most 63", name)
		case name != "" && names[name]:
			c.bad(at, "another group is called %s: give this one a name", name)
		default:
			names[name] = true
		}
		if len(g.Hosts) == 0 {
			c.bad(at, "hosts is missing: the names of its hosts")
		}
		for j, written := range g.Hosts {
			field := fmt.Sprintf("%s.hosts[%d]", at, j)
			expanded, err := expand(written)
			if err != nil {
				c.bad(field, "%v", err)
			}
			for _, h := range expanded {
				switch {
				case !isHost(h):
					c.bad(field, "%.80q is no name of a host: lower-case letters, digits, '-' and dots, the first part at most 42", h)
				case hosts[h] != "":
					c.bad(field, "%s is at %s already", h, hosts[h])
				case prefixes[Prefix(h)] != "":
					c.bad(field, "nodes of %s and %s would have the same names: %s-01", h, prefixes[Prefix(h)], Prefix(h))
				}
				hosts[h], prefixes[Prefix(h)] = field, h
			}
			nodes += len(expanded) * max(g.Slots, 1)
		}
		c.group(at, g)
	}
	for name := range names {
		if prefix, _, ok := SplitNode(name); ok && prefixes[prefix] != "" {
			c.bad("hosts", "a group is called %s, as a node of %s: Slurm could not tell them apart", name, prefixes[prefix])
		}
	}
	if nodes > MostNodes {
		c.bad("hosts", "%d nodes: Slurm has at most %d", nodes, MostNodes)
	}
}

// expand returns the hosts that a name with brackets stands for, as in Slurm's lists: st[01-40].
func expand(name string) ([]string, error) {
	if !strings.Contains(name, "[") {
		return []string{name}, nil
	}
	return hostlist.Expand(name)
}

func (c *checker) group(at string, g *Group) {
	c.within(at+".slots", g.Slots, 10_000)
	c.within(at+".cpus", g.CPUs, 65_535)
	c.within(at+".functions", g.Functions, 64)
	if g.Memory != 0 && g.Memory < 1<<20 {
		c.bad(at+".memory", "%s is too little: Slurm counts in MiB", g.Memory)
	}
	if g.Scratch != 0 && g.Scratch < 1<<20 {
		c.bad(at+".scratch", "%s is too little: Slurm counts in MiB", g.Scratch)
	}
	c.words(at+".features", g.Features, word())
	c.words(at+".users", g.Users, unixGroup())
	if g.Template != "" && vnode.CheckName(g.Template) != nil {
		c.bad(at+".template", "%v", vnode.CheckName(g.Template))
	}
}

// isHost reports whether a host may be called so: as in the site, and short enough for the names of its nodes.
func isHost(s string) bool {
	for label := range strings.SplitSeq(s, ".") {
		if vnode.CheckName(label) != nil {
			return false
		}
	}
	return len(Prefix(s)) <= 42 && len(s) <= 253
}

func (c *checker) partitions(s *Settings) {
	var names []string
	standard := false
	for i := range s.Hosts {
		if g := &s.Hosts[i]; s.Partitions == nil && g.Users != nil && g.called() == shared {
			c.bad(fmt.Sprintf("hosts[%d]", i), "give the group a name, or name partitions: %s is the partition of the hosts that are for all", shared)
		}
	}
	for i := range s.Partitions {
		p := &s.Partitions[i]
		at := fmt.Sprintf("partitions[%d]", i)
		switch {
		case p.Name == "":
			c.bad(at, "name is missing")
		case !IsWord(p.Name) || strings.EqualFold(p.Name, "default"):
			c.bad(at+".name", "%.80q is no name of a partition: letters, digits, '_', '-' and dots, and not DEFAULT, which is Slurm's own word", p.Name)
		case slices.Contains(names, p.Name):
			c.bad(at+".name", "another partition is called %s", p.Name)
		}
		names = append(names, p.Name)
		if p.Default && standard {
			c.bad(at+".default", "another partition is the default already")
		}
		standard = standard || p.Default
		c.words(at+".users", p.Users, unixGroup())
		c.words(at+".accounts", p.Accounts, word())
		for j, name := range p.Groups {
			if !slices.ContainsFunc(s.Hosts, func(g Group) bool { return g.called() == name && name != "" }) {
				c.bad(fmt.Sprintf("%s.groups[%d]", at, j), "%.80q is no group of hosts: %s", name, groupNames(s))
			}
		}
		c.bound(at, p, s.Of(p))
	}
}

// bound checks that hosts which are for some users alone are closed to others. Slurm has one list of users for a partition, not for its
// nodes.
func (c *checker) bound(at string, p *Partition, groups []*Group) {
	var first *Group
	for i, g := range groups {
		if p.Users != nil {
			for _, u := range p.Users {
				if g.Users != nil && !slices.Contains(g.Users, u) {
					c.bad(at+".users", "the hosts of %s are for %s alone, not for %s", g.called(), strings.Join(g.Users, " and "), u)
				}
			}
			continue
		}
		if i == 0 {
			first = g
		}
		if !slices.Equal(sorted(g.Users), sorted(first.Users)) {
			c.bad(at, "its hosts are for different users (%s; %s), and a partition has one list of them: give it groups, or users that all its hosts are for", whom(first), whom(g))
			return
		}
	}
}

func sorted(s []string) []string { return slices.Sorted(slices.Values(s)) }

// whom says which users the hosts of a group are for.
func whom(g *Group) string {
	if g.Users == nil {
		return g.Hosts[0] + " for all"
	}
	return g.called() + " for " + strings.Join(g.Users, " and ")
}

// groupNames lists the groups that partitions may name.
func groupNames(s *Settings) string {
	var all []string
	for i := range s.Hosts {
		if name := s.Hosts[i].called(); name != "" {
			all = append(all, name)
		}
	}
	if all == nil {
		return "no group has a name"
	}
	return "there is " + strings.Join(all, ", ")
}
