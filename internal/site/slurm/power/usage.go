package power

import (
	"context"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/internal/node"
	"berth/internal/site/slurm/hostlist"
	"berth/internal/sys/proof"
)

// columns name the figures of a node. memory_peak is in bytes, since the node was made: an earlier job's, if that was greater. read and written are
// bytes from disks of the host and to them, reads and writes requests.
var columns = []string{"cpu_s", "throttled_s", "memory_peak", "oom_kills", "read", "written", "reads", "writes"}

// peak is the column with a maximum, which a job does not add to.
const peak = 2

// amount is the resource use of a node, by column. It is nil if the node did not exist any more.
type amount []float64

// state has the resource use of nodes since they were made, and the limits in force.
type state struct {
	names  []string // of the rows of used, in their order
	used   map[string]amount
	limits map[string][]proof.Limit // by node
}

// mostRows is of how many nodes each has its own row: the accounts keep 64 KiB, and a program takes an argument of twice as much. All others are one row.
const mostRows = 400

// look asks the agents of nodes for their state. Fresh nodes have used nothing yet.
func (p *Power) look(ctx context.Context, all []place, fresh map[string]bool) state {
	var mu sync.Mutex
	s := state{used: map[string]amount{}, limits: map[string][]proof.Limit{}}
	each(all, func(at place) error {
		d, err := p.site.show(ctx, at.host, at.node)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			s.limits[at.node] = d.Limits
		}
		if !fresh[at.node] {
			s.used[at.node] = amountOf(d, err)
		}
		return err
	})
	for _, at := range all {
		s.names = append(s.names, at.node)
	}
	if len(all) > mostRows {
		s.together()
	}
	return s
}

// together makes one row of all, under the name of their list.
func (s *state) together() {
	var sum amount
	for _, a := range s.used {
		if sum == nil && a != nil {
			sum = make(amount, len(a))
		}
		for i := range a {
			if i == peak {
				sum[i] = max(sum[i], a[i])
			} else {
				sum[i] += a[i]
			}
		}
	}
	list := hostlist.Compress(s.names)
	s.names, s.used = []string{list}, map[string]amount{list: sum}
}

func amountOf(d *node.Detail, err error) amount {
	if err != nil || d.Usage == nil {
		return nil
	}
	a := make(amount, len(columns))
	if t := d.Usage.CPU; t != nil {
		a[0] = t.Round(time.Microsecond).Seconds()
	}
	if t := d.Usage.Throttled; t != nil {
		a[1] = t.Round(time.Microsecond).Seconds()
	}
	for i, n := range []*int64{d.Usage.Peak, d.Usage.OOMKills, d.Usage.Read, d.Usage.Written, d.Usage.Reads, d.Usage.Writes} {
		if n != nil {
			a[peak+i] = float64(*n)
		}
	}
	return a
}

// since subtracts the use from before. A node that was made anew meanwhile has used less.
func (a amount) since(before amount) amount {
	if len(before) != len(a) || a == nil || a[0] < before[0] {
		return a
	}
	a = slices.Clone(a)
	for i := range a {
		if i != peak {
			a[i] = max(0, a[i]-before[i])
		}
		if i < peak { // seconds: whole microseconds again
			a[i] = math.Round(a[i]*1e6) / 1e6
		}
	}
	return a
}

// note is the document in the AdminComment of a job when it begins.
type note struct {
	Nodes   []string            `json:"nodes"`
	Columns []string            `json:"columns"` // columns of Before, and of the document at the job's end
	Before  []amount            `json:"before"`  // the use of its nodes until then; null: none
	Limits  []map[string]string `json:"limits"`  // in force, as the kernel says; those of nodes that have the same ones together
}

// begins is how a note begins. Another program's is none.
const begins = `{"berth":`

// note returns the note on nodes in this state, before a job.
func (s *state) note() note {
	n := note{Nodes: s.names, Columns: columns, Limits: []map[string]string{}}
	for _, name := range s.names {
		n.Before = append(n.Before, s.used[name])
	}
	same := map[string][]string{} // nodes by their limits
	for _, name := range slices.Sorted(maps.Keys(s.limits)) {
		text, _ := json.Marshal(inForce(s.limits[name])) // strings
		same[string(text)] = append(same[string(text)], name)
	}
	for _, text := range slices.Sorted(maps.Keys(same)) {
		limits := map[string]string{}
		_ = json.Unmarshal([]byte(text), &limits)
		limits["nodes"] = hostlist.Compress(same[text])
		n.Limits = append(n.Limits, limits)
	}
	return n
}

// inForce are the limits of a node that bound something, by their names as in berth set. What a machine's guest has of memory binds nothing: it
// is the guest's to say.
func inForce(all []proof.Limit) map[string]string {
	by := map[string]string{}
	for _, l := range all {
		if l.ReadBack != "" && l.Asked != "max" && l.Key != string(proof.MachineMemory) {
			by[l.Key] = l.ReadBack
		}
	}
	return by
}

func (n note) String() string {
	text, _ := json.Marshal(map[string]note{"berth": n}) // strings and plain numbers
	return string(text)
}

// noteOf reads a note; it is empty if the text is none.
func noteOf(text string) note {
	var n struct{ Berth note }
	if !strings.HasPrefix(text, begins) || json.Unmarshal([]byte(text), &n) != nil || len(n.Berth.Nodes) != len(n.Berth.Before) {
		return note{}
	}
	return n.Berth
}

// since returns the resource use of a job on each of the nodes that its note names, in that order: JSON without quotes or capital letters,
// of which sacctmgr makes backticks and small letters (Slurm 22.05). Without a note it is the use of the nodes since they were made.
func (s *state) since(n note) string {
	if n.Nodes == nil {
		n = note{Nodes: s.names, Before: make([]amount, len(s.names))}
	}
	rows := make([]amount, len(n.Nodes))
	for i, name := range n.Nodes {
		rows[i] = s.used[name].since(n.Before[i])
	}
	text, _ := json.Marshal(rows) // plain numbers and null
	return string(text)
}
