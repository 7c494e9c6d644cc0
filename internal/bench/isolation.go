package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/internal/refuse"
	"berth/internal/vnode"
)

// IsolationOptions say what berth bench isolation measures. The zero value of a field means its default.
type IsolationOptions struct {
	Dir         string // folder on the disk that is measured; a data file is laid out there and removed
	Device      string // block device to use instead; read only …
	DestroyData bool   // … unless this is given: then its first Size bytes are overwritten
	Size        int64  // bytes of file or device that are used; default 256 MiB when Quick, else 1 GiB

	Parts     []Part        // default: all
	Engine    vnode.Engine  // what the disk is switched to for parts c and d while they run; "": what it has
	Model     string        // of engine iocost, as berth doctor --calibrate prints it
	Quick     bool          // fewer rows, shorter trials: some five minutes
	Run, Warm time.Duration // of one trial, and before it; default 800 and 300 ms when Quick, else 4 s and 1 s
	Rounds    int           // that count; default 6, the fewest that give an interval
	MarginPct float64       // for the verdicts; default 10 when Quick, else 5
	Seed      uint64        // of the order; default: a random one
}

// Part is one of the four questions of berth bench isolation.
type Part string

// The parts.
const (
	CostPart     Part = "a" // what being a node costs
	ThrottlePart Part = "b" // whether a rate holds
	WeightPart   Part = "c" // whether weights hold, and what they cost
	LatencyPart  Part = "d" // what a reader waits beside batch writers
)

var allParts = []Part{CostPart, ThrottlePart, WeightPart, LatencyPart}

// NodeHost makes the nodes that are measured and changes their limits.
type NodeHost struct {
	Host Arm // runs a command beside the nodes
	// Node makes a node; done removes it. A node that this host cannot have is refused as by berth apply.
	Node func(ctx context.Context, n *vnode.Node) (run Arm, done func(), err error)
	// Set changes one limit of a node that runs, as berth set does.
	Set func(ctx context.Context, node, key, value string) error
}

// IsolationMeasured is what one trial found: a value for each node or process, in their order.
type IsolationMeasured struct {
	Jobs []JobMeasured `json:"jobs"`
}

// JobMeasured are the numbers of one fio process.
type JobMeasured struct {
	IOPS      float64 `json:"iops"`
	Bandwidth float64 `json:"bytes_per_second"`
	LatP50    float64 `json:"lat_p50_us"` // microseconds, submission to completion
	LatP99    float64 `json:"lat_p99_us"`
}

// IsolationTrial is one trial: some fio processes at once.
type IsolationTrial struct {
	Part Part `json:"part"`
	Head
	*IsolationMeasured // nil where it failed
}

// RunIsolation measures. Like Run it returns a report, marked partial, beside the error when it was interrupted after at
// least one round; parts that the disk cannot have are left out with the reason, and refused if none is left. The nodes
// and the data file are gone when it returns. progress may be nil.
func RunIsolation(ctx context.Context, o IsolationOptions, host NodeHost, progress func(Progress)) (_ *Isolation, err error) {
	if progress == nil {
		progress = func(Progress) {}
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	start := time.Now()
	version, err := fioVersion(ctx, []namedArm{{hostArm, host.Host}})
	if err != nil {
		return nil, err
	}
	target, undo, err := prepare(ctx, Options{Dir: o.Dir, Device: o.Device, DestroyData: o.DestroyData, Size: o.Size},
		func(done, total int64) { progress(Progress{What: layOut, Done: done, Total: total}) })
	if err != nil {
		return nil, err
	}
	defer func() {
		if e := undo(); e != nil {
			err = errors.Join(err, fmt.Errorf("remove the data file: %w", e))
		}
	}()
	where, err := machine(target)
	if err != nil {
		return nil, err
	}
	r := &Isolation{
		Format: IsolationFormat, Started: start.UTC(), Seed: o.Seed, Quick: o.Quick, MarginPct: o.MarginPct, Rounds: o.Rounds,
		RunMillis: o.Run.Milliseconds(), Warm: o.Warm.Milliseconds(), Fio: version, Machine: where, Target: target, Engine: o.Engine,
	}
	run := isolationRun{o: o, host: host, target: target, report: r, progress: progress}
	err = run.all(ctx)
	r.Ended = time.Now().UTC()
	if err != nil && !slices.ContainsFunc(r.Trials, func(t IsolationTrial) bool { return t.Round > 0 && t.IsolationMeasured != nil }) {
		return nil, err
	}
	r.Partial = err != nil
	r.analyse()
	return r, err
}

func (o *IsolationOptions) complete() error {
	def := IsolationOptions{Size: 1 << 30, Run: 4 * time.Second, Warm: time.Second, MarginPct: 5}
	if o.Quick {
		def = IsolationOptions{Size: 256 << 20, Run: 800 * time.Millisecond, Warm: 300 * time.Millisecond, MarginPct: 10}
	}
	or(&o.Size, def.Size)
	or(&o.Run, def.Run)
	or(&o.Warm, def.Warm)
	or(&o.Rounds, MinPairs)
	or(&o.MarginPct, def.MarginPct)
	or(&o.Seed, uint64(rand.Uint32()))
	if len(o.Parts) == 0 {
		o.Parts = allParts
	}
	for _, p := range o.Parts {
		if !slices.Contains(allParts, p) {
			return refuse.Invalidf("there is no part %q: a (cost of a node), b (throttle), c (weights), d (latency)", p)
		}
	}
	switch {
	case (o.Dir == "") == (o.Device == ""):
		return refuse.Invalidf("either a folder or a device must be given")
	case o.DestroyData && o.Device == "":
		return refuse.Invalidf("destroy-data goes with a device")
	case o.Size < 64<<20:
		return refuse.Invalidf("the size is %d bytes; at least 64MiB is needed", o.Size)
	case o.Run < 50*time.Millisecond || o.Warm < time.Millisecond:
		return refuse.Invalidf("a trial of %v after %v is too short: at least 50ms after 1ms", o.Run, o.Warm)
	case o.MarginPct <= 0 || o.MarginPct >= 100:
		return refuse.Invalidf("the margin is %v %%; it lies between 0 and 100", o.MarginPct)
	case o.Rounds < 1 || o.Rounds > maxPairs:
		return refuse.Invalidf("%d rounds; from 1 to %d", o.Rounds, maxPairs)
	case o.Engine != "" && !o.Engine.Known():
		return refuse.Invalidf("there is no engine %q: bfq, bfq-strict or iocost", o.Engine)
	case o.Model != "" && o.Engine != vnode.IOCost:
		return refuse.Invalidf("a model is for engine iocost")
	}
	return nil
}

// isolationRun is a run under way.
type isolationRun struct {
	o        IsolationOptions
	host     NodeHost
	target   Target
	report   *Isolation
	progress func(Progress)
	later    time.Duration // what the parts after this one take
}

// all measures the parts, one after the other. What a part needs is made before it and gone after it.
func (r *isolationRun) all(ctx context.Context) error {
	var refused []error
	done := 0
	for i, p := range r.o.Parts {
		r.later = 0
		for _, q := range r.o.Parts[i+1:] {
			r.later += r.takes(q)
		}
		err := r.part(ctx, p)
		if no, ok := errors.AsType[*refuse.Error](err); ok && no.Kind == refuse.Cannot && ctx.Err() == nil {
			refused = append(refused, err)
			r.report.LeftOut = append(r.report.LeftOut, LeftOut{Part: p, Why: no.What, Remedy: no.Remedy})
			continue
		}
		if err != nil {
			return err
		}
		done++
	}
	if done == 0 {
		return refuse.Join(refused)
	}
	return nil
}

// takes says how long a part is about to take.
func (r *isolationRun) takes(p Part) time.Duration {
	arms := map[Part]int{CostPart: 3, ThrottlePart: 1, WeightPart: 1, LatencyPart: 4}[p]
	return time.Duration(r.o.Rounds+1) * time.Duration(len(rowsOf(p, r.o.Quick))*arms) * (r.o.Run + r.o.Warm + lead)
}

func (r *isolationRun) part(ctx context.Context, p Part) error {
	m := &nodes{host: r.host, target: r.target}
	defer m.close()
	s := &series[IsolationMeasured]{
		pairs: r.o.Rounds, trial: r.o.Run + r.o.Warm + lead, order: rand.New(rand.NewPCG(r.o.Seed, uint64(p[0]))), start: time.Now(),
		progress: func(now Progress) {
			now.What, now.Left = string(p)+": "+now.What, now.Left+r.later
			r.progress(now)
		},
		keep: func(h Head, got *IsolationMeasured) {
			r.report.Trials = append(r.report.Trials, IsolationTrial{Part: p, Head: h, IsolationMeasured: got})
		},
	}
	for _, row := range rowsOf(p, r.o.Quick) {
		s.rows = append(s.rows, row.name)
	}
	make := map[Part]func(context.Context, *nodes, *series[IsolationMeasured]) error{
		CostPart: r.cost, ThrottlePart: r.throttle, WeightPart: r.weights, LatencyPart: r.latency,
	}[p]
	if err := make(ctx, m, s); err != nil {
		return err
	}
	return s.run(ctx, func(int) {})
}

// nodes are those of one part.
type nodes struct {
	host   NodeHost
	target Target
	names  []string
	arms   []Arm
	done   []func()
}

// isolationEntry is the name of the io entry that every node has.
const isolationEntry = "data"

// add makes a node that has the data at its path.
func (m *nodes) add(ctx context.Context, role string, change func(n *vnode.Node, io *vnode.IO)) error {
	n := &vnode.Node{
		Name: fmt.Sprintf("bench-%d-%s", os.Getpid(), role), Image: vnode.Image{Kind: vnode.HostImage},
		Command: []string{"/bin/sleep", "infinity"},
	}
	io := vnode.IO{Name: isolationEntry}
	if m.target.Kind == "file" {
		io.Path = filepath.Dir(m.target.Path)
		n.Mounts = []vnode.Mount{{Source: io.Path, Target: io.Path}}
	} else {
		io.Device = m.target.Path
		access := "rw"
		if m.target.ReadsOnly {
			access = "r"
		}
		n.Devices = []vnode.Device{{Path: m.target.Path, Access: access}}
	}
	change(n, &io)
	n.IO = []vnode.IO{io}
	vnode.Defaults(n)
	run, done, err := m.host.Node(ctx, n)
	if err != nil {
		return err
	}
	m.names, m.arms, m.done = append(m.names, n.Name), append(m.arms, run), append(m.done, done)
	return nil
}

// set changes a limit of the i-th node.
func (m *nodes) set(ctx context.Context, i int, key, value string) error {
	return m.host.Set(ctx, m.names[i], strings.Join([]string{"io", isolationEntry, key}, "."), value)
}

func (m *nodes) close() {
	for _, d := range slices.Backward(m.done) {
		d()
	}
}
