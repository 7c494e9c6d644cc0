// Package bed lists the experiments, prepares the disks, nodes and networks that each is measured on, and runs single trials.
package bed

import (
	"cmp"
	"math/rand/v2"
	"time"

	"berth/internal/bench/side"
	"berth/internal/bench/stat"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// Options say what to measure. The zero value of a field means its default.
type Options struct {
	Names       []string      `json:"names"`                  // of experiments, or "all"
	Dirs        []string      `json:"dirs,omitempty"`         // folders in which data files are laid out; default /var/tmp
	Devices     []string      `json:"devices,omitempty"`      // block devices; only read …
	DestroyData bool          `json:"destroy_data,omitempty"` // … unless this is given
	Size        int64         `json:"size_bytes"`             // of a data file, and of the part of a device that is used; default 1 GiB
	Quick       bool          `json:"quick,omitempty"`        // fewer rows and shorter trials, where an experiment knows them
	NullOnly    bool          `json:"null_only,omitempty"`    // of disk experiments: no node, the host against itself
	Run         time.Duration `json:"run_ns,omitempty"`       // length of a trial; default: the experiment's, or less where the time is short
	Warm        time.Duration `json:"warm_ns,omitempty"`      // before it
	Budget      time.Duration `json:"budget_ns"`              // for a session; default 20 min
	MarginPct   float64       `json:"margin_pct"`             // default 5
	Pairs       int           `json:"pairs,omitempty"`        // default: from a pilot, or what the experiment says
	Sessions    int           `json:"sessions"`               // default 1
	Seed        uint64        `json:"seed"`                   // of the order of trials; default: a random one
	Peer        string        `json:"peer,omitempty"`         // of network experiments; default: one on this machine
	Networks    []string      `json:"networks,omitempty"`
	Port        int           `json:"port,omitempty"`
	Engine      vnode.Engine  `json:"engine,omitempty"`   // the engine to which isolation switches the disk for weights and latency; default: the one that it has
	Model       string        `json:"model,omitempty"`    // of engine iocost
	Gateways    []string      `json:"gateways,omitempty"` // arms of gateway experiments; default: all
	Nodes       []int         `json:"nodes,omitempty"`    // how many nodes of these work at once; default 1, 2, 4, 8
	Pools       []string      `json:"pools,omitempty"`    // of scratch volumes that are measured
	Servers     []int         `json:"servers,omitempty"`  // of VNode Sync: how many file servers; default 1, 2, 4
	Rates       []vnode.Rate  `json:"rates,omitempty"`    // of VNode Sync: what is asked of them; default 10 to 160 MB/s
	Machine     *side.Guest   `json:"machine,omitempty"`  // of the arm machine; nil: there is none

	Progress func(Progress) `json:"-"`
}

// Tell calls Progress, if it is set, with how far the run is.
func (o *Options) Tell(p Progress) {
	if o.Progress != nil {
		o.Progress(p)
	}
}

// MostPairs are as many as a run makes of one row: beyond it the signed-rank distribution is no longer exact.
const MostPairs = 200

// FewestRounds is a warm-up and the fewest pairs.
func (o *Options) FewestRounds() int {
	if o.Pairs > 0 {
		return 1 + o.Pairs
	}
	return 1 + stat.MinPairs
}

// Complete fills in defaults and checks the options. Run calls it itself.
func (o *Options) Complete() error {
	if len(o.Dirs)+len(o.Devices) == 0 {
		o.Dirs = []string{"/var/tmp"} // on a disk, where /tmp may be in memory
	}
	def := Options{Size: 1 << 30, Budget: 20 * time.Minute, MarginPct: 5}
	if o.Quick {
		def = Options{Size: 256 << 20, Budget: 100 * time.Second, MarginPct: 10}
	}
	o.Size, o.Budget, o.MarginPct = cmp.Or(o.Size, def.Size), cmp.Or(o.Budget, def.Budget), cmp.Or(o.MarginPct, def.MarginPct)
	o.Sessions = cmp.Or(o.Sessions, 1)
	o.Seed = cmp.Or(o.Seed, uint64(rand.Uint32())) // 32 bits: every reader of JSON keeps them exactly
	switch {
	case o.DestroyData && len(o.Devices) == 0:
		return refuse.Invalidf("--destroy-data goes with --device")
	case o.Size < 1<<20:
		return refuse.Invalidf("the size is %d bytes; at least 1MiB is needed", o.Size)
	case o.MarginPct <= 0 || o.MarginPct >= 100:
		return refuse.Invalidf("the margin is %v %%; it lies between 0 and 100", o.MarginPct)
	case o.Pairs < 0 || o.Pairs > MostPairs:
		return refuse.Invalidf("%d pairs; at most %d", o.Pairs, MostPairs)
	case o.Sessions < 1 || o.Sessions > 1000:
		return refuse.Invalidf("%d sessions; from 1 to 1000", o.Sessions)
	case o.Budget < time.Second:
		return refuse.Invalidf("a budget of %v is too small", o.Budget)
	case o.Run < 0 || o.Run > 0 && o.Run < 50*time.Millisecond || o.Warm < 0 || o.Warm > 0 && o.Warm < time.Millisecond:
		return refuse.Invalidf("a trial of %v after %v is too short: at least 50ms after 1ms", o.Run, o.Warm)
	case o.Engine != "" && !o.Engine.Known():
		return refuse.Invalidf("there is no engine %q: bfq, bfq-strict or iocost", o.Engine)
	case o.Model != "" && o.Engine != vnode.IOCost:
		return refuse.Invalidf("a model is for engine iocost")
	}
	if o.Machine != nil {
		if err := o.Machine.Complete(); err != nil {
			return err
		}
	}
	return o.checkGateways()
}

// Progress is told before each trial, and while the data is laid out.
type Progress struct {
	What        string // "lay out", or "fio-d, 4 KiB node"
	Done, Total int64  // bytes laid out, or trials that are done
	Left        time.Duration
	SoFar       string // the verdicts as they would be now, for display only
}

// LayOut is Progress.What before the trials.
const LayOut = "lay out"

// Endures is how many trials may fail in a row before a run gives up: then an arm is broken, not disturbed.
const Endures = 5
