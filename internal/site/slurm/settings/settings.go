// Package settings reads /etc/berth/slurm.yaml, which says what a site's Slurm may make of its hosts, as strictly as a spec, and
// names the nodes that Slurm may ask for.
package settings

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/internal/spec"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
)

// Settings is the content of the file. Read fills in defaults.
type Settings struct {
	Cluster    string      `json:"cluster,omitempty" doc:"ClusterName of Slurm; with controller"`
	Controller Controller  `json:"controller,omitzero" doc:"the host of slurmctld, for a slurm.conf to begin with; leave it out where the site has its own"`
	User       string      `json:"user,omitempty" doc:"the user that slurmctld and its programs run as (SlurmUser); if absent: slurm"`
	Template   string      `json:"template,omitempty" doc:"the template in /etc/berth/templates of each host that nodes are made of; if absent: worker"`
	Programs   string      `json:"programs,omitempty" doc:"folder with slurm-resume, slurm-suspend, slurm-fail, slurm-prolog and slurm-epilog, which slurmctld starts; if absent: lib/berth beside this program's folder"`
	API        API         `json:"api,omitzero" doc:"how the hosts' agents are reached"`
	Fill       string      `json:"fill,omitempty" doc:"which host the next node is made on: few fills a host before the next one, spread takes one of each in turn; if absent: few" allowed:"few|spread"`
	Addresses  string      `json:"addresses,omitempty" doc:"how slurmctld learns where a node is: told by slurm-resume, or dns, where the site's DNS knows the nodes' names; if absent: told" allowed:"told|dns"`
	Power      Power       `json:"power,omitzero" doc:"when nodes are made and removed, and how fast"`
	Warm       int         `json:"warm,omitempty" range:"1..100000" doc:"so many nodes of each host stay when nothing runs on them; if absent: none"`
	Once       bool        `json:"once,omitempty" doc:"a node runs one job and is removed after it, so that no job finds what another one left; if absent: nodes on which nothing runs stay for the next job, for power.idle"`
	Leave      []string    `json:"leave,omitempty" doc:"keys of slurm.conf that the site sets itself, and that Berth's file leaves out, for example [PrologSlurmctld]"`
	Hosts      []Group     `json:"hosts" doc:"the hosts that nodes are made on, in groups of the same kind"`
	Partitions []Partition `json:"partitions,omitempty" doc:"Slurm's partitions; if absent: batch, of all groups without users, and one for each group with users"`
}

// Controller is the host of slurmctld.
type Controller struct {
	Host    string `json:"host" doc:"its name, as hostname -s prints it there"`
	Address string `json:"address,omitempty" doc:"where nodes reach it; if absent: its name"`
	State   string `json:"state,omitempty" doc:"folder in which slurmctld keeps its state; if absent: /var/lib/slurm/slurmctld"`
}

// API says how the agents of the hosts are reached.
type API struct {
	Agent string `json:"agent,omitempty" doc:"NAME[:PORT] or unix:SOCKET of the agent that is asked for the site's hosts; if absent: that of the first host"`
	Certs string `json:"certs,omitempty" doc:"folder with the operator's certificate, its key and the site's authority; if absent: /etc/berth/slurm"`
}

// Power says when nodes are made and removed.
type Power struct {
	Idle           vnode.Duration `json:"idle,omitempty" doc:"a node is removed when nothing has run on it for so long (SuspendTime); if absent: 5m"`
	ResumeTimeout  vnode.Duration `json:"resume_timeout,omitempty" doc:"a node that does not answer after so long is given up, and its job queued again; if absent: 2m"`
	SuspendTimeout vnode.Duration `json:"suspend_timeout,omitempty" doc:"after so long a removed node may be made again; if absent: 1m"`
	ResumeRate     int            `json:"resume_rate,omitempty" range:"1..1000000" doc:"most nodes that are made in a minute; if absent: no bound"`
	SuspendRate    int            `json:"suspend_rate,omitempty" range:"1..1000000" doc:"most nodes that are removed in a minute; if absent: no bound"`
}

// Group is a group of hosts of the same kind. Fields that are not set are asked of the hosts' agents.
type Group struct {
	Name      string      `json:"name,omitempty" doc:"the group's name, which partitions give and jobs may ask for as a feature; if absent: that of its users, if these are one group"`
	Hosts     []string    `json:"hosts" doc:"names of hosts of the site, also many in one: st[01-40]"`
	Slots     int         `json:"slots,omitempty" range:"1..10000" doc:"most nodes of a host; if absent: slots of its agent's file"`
	CPUs      int         `json:"cpus,omitempty" range:"1..65535" doc:"CPUs of a node; if absent: cpu.max of the template, else the host's divided by its slots"`
	Memory    vnode.Bytes `json:"memory,omitempty" doc:"memory of a node; if absent: memory.max of the template, else nine tenths of the host's divided by its slots"`
	Scratch   vnode.Bytes `json:"scratch,omitempty" doc:"scratch space of a node; if absent: that of the template"`
	Functions int         `json:"functions,omitempty" range:"1..64" doc:"virtual functions of a node; if absent: those of the template"`
	Features  []string    `json:"features,omitempty" doc:"words that jobs may ask for (sbatch --constraint), beside the host's name, rack and group, and the class and network modes of its nodes"`
	Users     []string    `json:"users,omitempty" doc:"Unix groups whose users alone have these hosts, so that their I/O is apart; if absent: all"`
	Template  string      `json:"template,omitempty" doc:"another template for these hosts"`
}

// Partition is a partition of Slurm. Each of its nodes runs one job at a time.
type Partition struct {
	Name     string   `json:"name" doc:"the partition's name"`
	Default  bool     `json:"default,omitempty" doc:"jobs that name no partition go here"`
	Groups   []string `json:"groups,omitempty" doc:"names of the groups of hosts; if absent: all of them"`
	MaxTime  Limit    `json:"max_time,omitempty" doc:"longest time of a job, as 24h, or as in Slurm: 7-00:00:00; if absent: no limit"`
	Users    []string `json:"users,omitempty" doc:"Unix groups whose users may use it; if absent: those of its groups of hosts"`
	Accounts []string `json:"accounts,omitempty" doc:"Slurm's accounts that may use it; if absent: all"`
}

// Ways to choose the next host, and to tell addresses.
const (
	Few    = "few"
	Spread = "spread"
	Told   = "told"
	DNS    = "dns"
)

// shared is the partition of the hosts that are for all, where the file names no partitions.
const shared = "batch"

// Path returns the file of a layout.
func Path(l layout.Layout) string { return l.Etc("slurm.yaml") }

// Read reads the file at path, and fills in defaults.
func Read(l layout.Layout, path string) (*Settings, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse.NotFoundf("there is no %s: it says which hosts Slurm may make nodes on (share/doc/berth/slurm.md)", path)
	}
	if err != nil {
		return nil, refuse.Cannotf("the user of slurmctld must be able to read it", "read the settings of Slurm: %w", err)
	}
	s, err := Parse(path, data)
	if err != nil {
		return nil, err
	}
	s.complete(l)
	return s, nil
}

// Parse reads the text of the file. Its error is a refusal of kind Invalid, one line a mistake with its place.
func Parse(path string, data []byte) (*Settings, error) {
	s, checked := &Settings{}, false
	err := spec.ParseOne(path, data, "the file of settings", s, func(s *Settings) []vnode.Problem {
		checked = true
		return check(s)
	})
	if err == nil && !checked {
		err = spec.Problems{{File: path, Line: 1, Column: 1, Msg: "no settings in this file: at least hosts"}}
	}
	if err != nil {
		return nil, &refuse.Error{Kind: refuse.Invalid, What: err.Error(), Err: err}
	}
	return s, nil
}

// Schema returns the JSON Schema of the file.
func Schema() ([]byte, error) {
	return spec.SchemaOf[Settings]("Settings of a site's Slurm, slurm.yaml")
}

// complete fills in the defaults.
func (s *Settings) complete(l layout.Layout) {
	for i := range s.Hosts {
		var all []string
		for _, name := range s.Hosts[i].Hosts {
			expanded, _ := expand(name) // checked
			all = append(all, expanded...)
		}
		s.Hosts[i].Hosts = all
	}
	s.User = cmp.Or(s.User, "slurm")
	s.Template = cmp.Or(s.Template, "worker")
	s.Programs = cmp.Or(s.Programs, programs())
	if s.Controller != (Controller{}) {
		s.Controller.State = cmp.Or(s.Controller.State, "/var/lib/slurm/slurmctld")
	}
	s.API.Certs = cmp.Or(s.API.Certs, l.Etc("slurm"))
	s.API.Agent = cmp.Or(s.API.Agent, s.Hosts[0].Hosts[0])
	s.Fill = cmp.Or(s.Fill, Few)
	s.Addresses = cmp.Or(s.Addresses, Told)
	s.Power.Idle = cmp.Or(s.Power.Idle, vnode.Duration(5*time.Minute))
	s.Power.ResumeTimeout = cmp.Or(s.Power.ResumeTimeout, vnode.Duration(2*time.Minute))
	s.Power.SuspendTimeout = cmp.Or(s.Power.SuspendTimeout, vnode.Duration(time.Minute))
	s.nameGroups()
	for i := range s.Hosts {
		s.Hosts[i].Template = cmp.Or(s.Hosts[i].Template, s.Template)
	}
	if s.Partitions == nil {
		s.Partitions = s.ownPartitions()
	}
	for i := range s.Partitions {
		p := &s.Partitions[i]
		for _, g := range s.Of(p) {
			if p.Users == nil {
				p.Users = g.Users
			}
		}
	}
}

// nameGroups gives each group a name: hosts, or hosts2 … where there are several without one.
func (s *Settings) nameGroups() {
	taken := map[string]bool{}
	for i := range s.Hosts {
		s.Hosts[i].Name = s.Hosts[i].called()
		taken[s.Hosts[i].Name] = true
	}
	for i := range s.Hosts {
		g := &s.Hosts[i]
		for n := 1; g.Name == ""; n++ {
			name := "hosts"
			if n > 1 {
				name += strconv.Itoa(n)
			}
			if !taken[name] {
				g.Name, taken[name] = name, true
			}
		}
	}
}

// programs is where make install and the package put the programs that slurmctld starts, which are links to this one's folder.
func programs() string {
	if self, err := os.Executable(); err == nil {
		return filepath.Join(filepath.Dir(filepath.Dir(self)), "lib", "berth")
	}
	return "/usr/lib/berth"
}

// ownPartitions are those of a file that names none.
func (s *Settings) ownPartitions() (all []Partition) {
	shared := Partition{Name: shared, Default: true}
	for _, g := range s.Hosts {
		if g.Users == nil {
			shared.Groups = append(shared.Groups, g.Name)
			continue
		}
		all = append(all, Partition{Name: g.Name, Groups: []string{g.Name}})
	}
	if shared.Groups != nil {
		all = slices.Insert(all, 0, shared)
	}
	return all
}

// Of returns the groups of hosts of a partition.
func (s *Settings) Of(p *Partition) (all []*Group) {
	for i := range s.Hosts {
		if p.Groups == nil || slices.Contains(p.Groups, s.Hosts[i].called()) {
			all = append(all, &s.Hosts[i])
		}
	}
	return all
}

// called returns the name of a group, also where the file leaves it out.
func (g *Group) called() string {
	if g.Name == "" && len(g.Users) == 1 {
		return g.Users[0]
	}
	return g.Name
}

// isPath reports whether s is a plain path from the root of the file system, which slurm.conf can hold.
func isPath(s string) bool {
	return filepath.IsAbs(s) && filepath.Clean(s) == s && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`#"'\=,%`, r) })
}
