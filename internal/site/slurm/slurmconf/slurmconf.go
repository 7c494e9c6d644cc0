// Package slurmconf writes the configuration files that tell a site's Slurm of the nodes that Berth makes for it, from the settings and
// from what the hosts' agents report, to fit the site's own slurm.conf.
package slurmconf

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/internal/site/slurm/settings"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// The files. Berth's own are written anew each time; the others are the site's, and made only where there is none.
const (
	MainFile = "berth.conf"
	GresFile = "berth-gres.conf"
)

// Config has the files, and notes about them.
type Config struct {
	Version   string     `json:"slurm_version"`
	Hosts     int        `json:"hosts"`
	Nodes     int        `json:"nodes"`
	Files     []File     `json:"files"`
	Notes     []Note     `json:"notes"`
	Conflicts []Conflict `json:"conflicts"`
}

// File is one file of Slurm's folder.
type File struct {
	Name  string `json:"name"`
	Text  string `json:"text"`
	Begin bool   `json:"begin"` // for a site that has none: once it is there, it is the site's own
}

// key is a key of slurm.conf and its value. Why is the comment above it; "" if there is none.
type key struct{ name, value, why string }

// Make makes the files for a release of Slurm. facts are by the hosts' names.
func Make(s *settings.Settings, facts map[string]Facts, v Version, there *There) (*Config, error) {
	c := &Config{Version: v.String(), Notes: []Note{}, Conflicts: []Conflict{}}
	if Newest.before(v) {
		c.Notes = append(c.Notes, Note{Text: "Slurm " + v.String() + " is newer than " + Newest.String() + ", the last one whose slurm.conf(5) was read"})
	}
	if v.before(weighsAbsent) {
		what := "fill: few goes by the hosts' names, not by their order in slurm.yaml"
		if s.Fill == settings.Spread {
			what = "fill: spread has no effect on which node is made next"
		}
		c.Notes = append(c.Notes, Note{Text: "Slurm " + Oldest.String() + " weighs only nodes that are there, and takes others by their names, host after host: " + what})
	}
	var all []*slots
	for i := range s.Hosts {
		g := &s.Hosts[i]
		for _, host := range g.Hosts {
			one, notes, err := sizes(g, host, facts[host])
			if err != nil {
				return nil, err
			}
			c.Notes = append(c.Notes, notes...)
			all = append(all, one)
			c.Nodes += one.count
		}
	}
	if c.Nodes > settings.MostNodes {
		return nil, refuse.Invalidf("%d nodes on %d hosts: Slurm has at most %d; write fewer slots into slurm.yaml", c.Nodes, len(all), settings.MostNodes)
	}
	c.Hosts = len(all)
	keys, conflicts := there.settle(global(s, all, v), s.Leave, s.Addresses == settings.DNS)
	c.Conflicts = append(c.Conflicts, conflicts...)
	for _, p := range s.Partitions {
		if slices.Contains(there.parts, p.Name) {
			c.Conflicts = append(c.Conflicts, Conflict{"PartitionName", p.Name, p.Name, "slurm.conf has a partition of this name: give one of them another"})
		}
	}

	c.Files = append(c.Files, File{Name: MainFile, Text: mainText(s, all, keys, v)})
	gres := gresText(all, v)
	c.Notes = append(c.Notes, there.advice(gres != "")...)
	if gres != "" {
		c.Files = append(c.Files, File{Name: GresFile, Text: gres}, File{Name: "gres.conf", Text: "include " + GresFile + "\n", Begin: true})
	}
	if s.Controller != (settings.Controller{}) {
		c.Files = append(c.Files, File{Name: "slurm.conf", Text: beginText(s, v), Begin: true})
	}
	return c, nil
}

// head is the first line of a file.
func head(what string, v Version) string {
	return fmt.Sprintf("# %s, for Slurm %s. berth slurm config makes this file from /etc/berth/slurm.yaml.\n", what, v)
}

// global are the keys that slurm.conf has once.
func global(s *settings.Settings, all []*slots, v Version) []key {
	program := func(name string) string { return s.Programs + "/slurm-" + name }
	keys := []key{
		{"ResumeProgram", program("resume"), "Slurm starts these with the names of nodes or jobs; they take no arguments from here."},
		{"SuspendProgram", program("suspend"), ""},
		{"ResumeFailProgram", program("fail"), ""},
		{"PrologSlurmctld", program("prolog"), ""},
		{"EpilogSlurmctld", program("epilog"), ""},
		{"ResumeRate", strconv.Itoa(s.Power.ResumeRate), "Nodes a minute; 0 is no bound."},
		{"SuspendRate", strconv.Itoa(s.Power.SuspendRate), ""},
		{"TreeWidth", "65533", "Nodes do not know where others are: slurmctld sends its messages to each itself."},
	}
	if s.Addresses == settings.DNS {
		keys = append(keys, key{"SlurmctldParameters", "cloud_dns", "DNS says where nodes are."})
	}
	if v.before(showsCloud) {
		keys = append(keys, key{"PrivateData", "cloud", "sinfo shows nodes that are not there now."})
	}
	var types []string
	for name, has := range map[string]func(*slots) bool{
		gresScratch:  func(o *slots) bool { return o.scratch > 0 },
		gresFunction: func(o *slots) bool { return o.functions > 0 },
	} {
		if slices.ContainsFunc(all, has) {
			types = append(types, name)
		}
	}
	if slices.Sort(types); types != nil {
		keys = append(keys, key{"GresTypes", strings.Join(types, ","), "scratch: bytes; vf: virtual functions of a network adapter."})
	}
	if s.Warm > 0 {
		var warm []string
		for _, one := range all {
			first := *one
			first.count = min(one.count, 99) // Slurm 22.05 reads two ranges in brackets as two lists
			warm = append(warm, fmt.Sprintf("%s:%d", first.names(), min(s.Warm, first.count)))
		}
		keys = append(keys, key{"SuspendExcNodes", strings.Join(warm, ","), "So many nodes of each host stay."})
	}
	return keys
}

// firstWeight is the weight of the node that is taken first. Nodes that the site had before weigh 1, if it says nothing else: jobs
// go to these first.
const firstWeight = 100

// mainText writes Berth's own file. Each line says all that a site's lines NodeName=DEFAULT and PartitionName=DEFAULT could have changed,
// and there are none here: they would change the site's.
func mainText(s *settings.Settings, all []*slots, keys []key, v Version) string {
	var b strings.Builder
	b.WriteString(head("Nodes on demand", v))
	b.WriteString("# In slurm.conf, this is the last line: include " + MainFile + "\n")
	for _, k := range keys {
		if k.why != "" {
			b.WriteString("\n# " + k.why + "\n")
		}
		b.WriteString(k.name + "=" + k.value + "\n")
	}
	if s.Fill == settings.Spread {
		b.WriteString("\n# The next node is the first one of each host, then the second one of each (fill: spread).\n")
	} else {
		b.WriteString("\n# The next node is one of the first host that has room (fill: few).\n")
	}
	for i, n := range order(all, s.Fill) {
		b.WriteString(nodeLine(n, firstWeight+i))
	}
	b.WriteString("\n# Groups of hosts.\n")
	for i := range s.Hosts {
		g := &s.Hosts[i]
		var names []string
		for _, one := range all {
			if one.group == g {
				names = append(names, one.names())
			}
		}
		b.WriteString("NodeSet=" + g.Name + " Nodes=" + strings.Join(names, ",") + "\n")
	}
	b.WriteString("\n# A node runs one job at a time.\n")
	for i := range s.Partitions {
		b.WriteString(partitionLine(s, &s.Partitions[i], v))
	}
	return b.String()
}

// place is a slot of a host.
type place struct {
	*slots
	slot int
}

// order lists all nodes, the one that is to be made first at the beginning. Each gets a weight of its own: of nodes with one weight of
// which some are there, slurmctld 22.05 takes the others last of all, so that it would go from host to host (TestSlurmctld).
func order(all []*slots, fill string) (nodes []place) {
	for _, one := range all {
		for slot := 1; slot <= one.count; slot++ {
			nodes = append(nodes, place{one, slot})
		}
	}
	if fill == settings.Spread {
		slices.SortStableFunc(nodes, func(a, b place) int { return cmp.Compare(a.slot, b.slot) })
	}
	return nodes
}

func nodeLine(n place, weight int) string {
	line := fmt.Sprintf("NodeName=%s CPUs=%d Sockets=%d CoresPerSocket=1 ThreadsPerCore=1 RealMemory=%d TmpDisk=%d", settings.NodeName(n.host, n.slot), n.cpus, n.cpus, n.memory, n.scratch)
	return line + fmt.Sprintf(" Gres=%s Feature=%s Weight=%d State=CLOUD\n", cmp.Or(n.gres(), `""`), strings.Join(n.features, ","), weight)
}

func partitionLine(s *settings.Settings, p *settings.Partition, v Version) string {
	var groups []string
	for _, g := range s.Of(p) {
		groups = append(groups, g.Name)
	}
	all := func(names []string) string { return cmp.Or(strings.Join(names, ","), "ALL") }
	yes := map[bool]string{true: "YES", false: "NO"}
	alone := "OverSubscribe=EXCLUSIVE"
	if !v.before(exclusiveNode) {
		alone = "Exclusive=NODE"
	}
	// The times are those of the partition: others of the site keep their nodes.
	return fmt.Sprintf("PartitionName=%s Nodes=%s Default=%s State=UP MaxTime=%s AllowGroups=%s AllowAccounts=%s %s SuspendTime=%d ResumeTimeout=%d SuspendTimeout=%d\n",
		p.Name, strings.Join(groups, ","), yes[p.Default], cmp.Or(string(p.MaxTime), "UNLIMITED"), all(p.Users), all(p.Accounts), alone,
		seconds(s.Power.Idle), seconds(s.Power.ResumeTimeout), seconds(s.Power.SuspendTimeout))
}

func seconds(d vnode.Duration) int { return int(time.Duration(d) / time.Second) }

// gresText writes the generic resources; "" if no node has any. They are counts alone: Berth makes the volumes and moves the functions.
func gresText(all []*slots, v Version) string {
	var b strings.Builder
	for _, one := range all {
		if one.scratch > 0 {
			fmt.Fprintf(&b, "NodeName=%s Name=%s Count=%dM Flags=CountOnly\n", one.names(), gresScratch, one.scratch)
		}
		if one.functions > 0 {
			fmt.Fprintf(&b, "NodeName=%s Name=%s Count=%d Flags=CountOnly\n", one.names(), gresFunction, one.functions)
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return head("What nodes on demand have", v) + b.String()
}

// beginText writes a slurm.conf for a site that has none. Plugins that are the default or none are left out: releases differ in whether they
// may be named.
func beginText(s *settings.Settings, v Version) string {
	c := s.Controller
	host := c.Host
	if c.Address != "" {
		host += "(" + c.Address + ")"
	}
	return fmt.Sprintf("# Slurm %s of cluster %s. berth slurm config made this file once; it is yours to change.\n", v, s.Cluster) +
		"ClusterName=" + s.Cluster + `
SlurmctldHost=` + host + `
SlurmUser=` + s.User + `
AuthType=auth/munge
StateSaveLocation=` + c.State + `
SlurmdSpoolDir=/var/spool/slurmd.%n

# Whole nodes are given to jobs; within them, cores and memory to steps.
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory

# These work in a node on cgroup v1 and v2, without a group of its own to manage.
ProctrackType=proctrack/linuxproc
JobAcctGatherType=jobacct_gather/linux

# A container sees the CPUs and memory of its host: what Berth gives it counts.
SlurmdParameters=config_overrides
ReturnToService=1

include ` + MainFile + "\n"
}
