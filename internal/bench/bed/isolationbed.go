package bed

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth/internal/bench/fio"
	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// isolationEntry is the name of the io entry that every node of the isolation experiments has.
const isolationEntry = "data"

// LeastIsolated is the smallest part of a disk that the isolation experiments use, bytes.
const LeastIsolated = 64 << 20

// isolationBed is the bed of a part: nodes that have the data at its path.
type isolationBed struct {
	*Bed
	o     *Options
	lab   Lab
	names []string
	nodes []side.Arm
}

// makeIsolationBed lays out the data and makes the nodes of a part.
func makeIsolationBed(ctx context.Context, common *Bed, d *Definition, o *Options, lab Lab) error {
	b := &isolationBed{Bed: common, o: o, lab: lab}
	if err := b.LayOut(ctx, d, o); err != nil {
		return err
	}
	parts := map[Part]func(context.Context, []isolationRow) error{CostPart: b.cost, ThrottlePart: b.throttle, WeightPart: b.weights, LatencyPart: b.latency}
	return parts[d.Part](ctx, isolationRows(d.Part, o.Quick))
}

// add makes a node.
func (b *isolationBed) add(ctx context.Context, role string, change func(n *vnode.Node, io *vnode.IO)) error {
	n := diskNode(b.Targets)
	n.Name, n.Hostname = fmt.Sprintf("bench-%d-%s", os.Getpid(), role), ""
	io := vnode.IO{Name: isolationEntry}
	if t := b.Targets[0]; t.Kind == "file" {
		io.Path = t.Folder()
	} else {
		io.Device = t.Path
	}
	change(n, &io)
	n.IO = []vnode.IO{io}
	vnode.Defaults(n)
	run, err := b.Node(ctx, b.lab, n)
	if err != nil {
		return err
	}
	b.names, b.nodes = append(b.names, n.Name), append(b.nodes, run)
	return nil
}

// set changes a limit of the i-th node.
func (b *isolationBed) set(ctx context.Context, i int, key, value string) error {
	return b.lab.Set(ctx, b.names[i], strings.Join([]string{"io", isolationEntry, key}, "."), value)
}

// arm adds an arm; run is any of its commands' places, by which the version of fio is found.
func (b *isolationBed) arm(name, title string, run side.Arm) {
	b.Arms = append(b.Arms, Arm{Arm: result.Arm{Name: name, Title: title}, Run: run})
}

// row adds a row: jobs says what runs at once in an arm, values what is taken of it.
func (b *isolationBed) row(name string, jobs func(ctx context.Context, arm string) ([]placed, error), values func([]map[string]float64) map[string]float64) {
	b.Rows = append(b.Rows, Row{Row: result.Row{Name: name}, Job: togetherRun{b.Targets[0].Target, jobs, values}})
}

// switched notes that the disk was switched to another engine.
func (b *isolationBed) switched() {
	if b.o.Engine != "" {
		b.Notes = append(b.Notes, "the disk was switched to "+string(b.o.Engine)+" for it")
	}
}

func bytesOf(jobs []map[string]float64) (sum float64) {
	for _, j := range jobs {
		sum += j["bytes_per_second"]
	}
	return sum
}

func total(jobs []map[string]float64) map[string]float64 {
	return map[string]float64{"bytes_per_second": bytesOf(jobs)}
}

// cost measures rows of n processes: on the host, one in each of n nodes, and on the host again.
func (b *isolationBed) cost(ctx context.Context, rows []isolationRow) error {
	for i := range slices.MaxFunc(rows, func(a, b isolationRow) int { return a.count - b.count }).count {
		if err := b.add(ctx, strconv.Itoa(i+1), func(*vnode.Node, *vnode.IO) {}); err != nil {
			return err
		}
	}
	b.arm(result.Host, "host", side.Host)
	b.WithNull()
	b.arm(result.Node, "nodes", b.nodes[0])
	b.Notes = append(b.Notes, "Published (VNodes 2015, one disk): less than 10 % lost with 1 to 8 nodes.")
	for _, row := range rows {
		b.row(row.name, func(_ context.Context, arm string) (jobs []placed, _ error) {
			for i := range row.count {
				run := side.Arm(side.Host)
				if arm == result.Node {
					run = b.nodes[i]
				}
				jobs = append(jobs, placed{run, load{pattern: "randread", block: row.block, depth: 1}})
			}
			return jobs, nil
		}, total)
	}
	return nil
}

// throttle measures a node with a rate, beside nodes without one.
func (b *isolationBed) throttle(ctx context.Context, rows []isolationRow) error {
	for i := range 4 {
		err := b.add(ctx, strconv.Itoa(i+1), func(_ *vnode.Node, io *vnode.IO) {
			if i == 0 {
				io.Read.Rate = 10e6
			}
		})
		if err != nil {
			return err
		}
	}
	b.arm(result.Asked, "what was asked", nil)
	b.arm(result.Node, "node with a rate", b.nodes[0])
	b.Notes = append(b.Notes, "Published (VNodes 2015): the upper limit holds; concurrent processes take some of it.")
	for _, row := range rows {
		b.row(row.name, func(ctx context.Context, _ string) ([]placed, error) {
			if err := b.set(ctx, 0, "read.rate", fmt.Sprintf("%dMB/s", row.rate/1e6)); err != nil {
				return nil, err
			}
			jobs := []placed{{b.nodes[0], reads(row.block, 4)}}
			for i := range row.count {
				jobs = append(jobs, placed{b.nodes[1+i], reads(row.block, 16)})
			}
			return jobs, nil
		}, func(jobs []map[string]float64) map[string]float64 {
			return map[string]float64{"bytes_per_second": jobs[0]["bytes_per_second"], "others_bytes_per_second": bytesOf(jobs[1:])}
		})
		b.Rows[len(b.Rows)-1].Asked = map[string]float64{"bytes_per_second": float64(row.rate)}
	}
	return nil
}

// weights measures nodes that share the disk, against the first of them alone.
func (b *isolationBed) weights(ctx context.Context, rows []isolationRow) error {
	for i := range 4 {
		err := b.add(ctx, strconv.Itoa(i+1), func(_ *vnode.Node, io *vnode.IO) {
			io.Weight, io.Engine, io.Model = 100, b.o.Engine, b.o.Model
		})
		if err != nil {
			return err
		}
	}
	b.arm(aloneArm, "one node alone", b.nodes[0])
	b.arm(result.Node, "nodes with weights", b.nodes[0])
	b.switched()
	b.Notes = append(b.Notes, "Published (VNodes 2015): less than 8 % lost in total.")
	for _, row := range rows {
		b.row(row.name, func(ctx context.Context, arm string) (jobs []placed, _ error) {
			split := row.split
			if arm == aloneArm {
				split = []int{100}
			}
			for i, percent := range split {
				// 10 times the share: BFQ's scale ends at 1000, and its steps at 1 are coarse.
				if err := b.set(ctx, i, "weight", strconv.Itoa(10*percent)); err != nil {
					return nil, err
				}
				jobs = append(jobs, placed{b.nodes[i], reads(row.block, row.depth)})
			}
			return jobs, nil
		}, func(jobs []map[string]float64) map[string]float64 {
			v, all := total(jobs), bytesOf(jobs)
			if len(jobs) > 1 && all > 0 {
				for i, j := range jobs {
					v[ShareOf(i)] = 100 * j["bytes_per_second"] / all
				}
			}
			return v
		})
	}
	return nil
}

// latency measures a reader that waits for each of its requests, beside three writers.
func (b *isolationBed) latency(ctx context.Context, rows []isolationRow) error {
	if b.Targets[0].ReadsOnly {
		return refuse.Cannotf("measure a folder, or give --destroy-data", "writers are a part of it, and a device is written only with --destroy-data")
	}
	const writers = 3
	for _, set := range []struct {
		prefix         string
		reader, writer vnode.Class
	}{{"u", "", ""}, {"p", vnode.Storage, vnode.Batch}} {
		for i := range 1 + writers {
			err := b.add(ctx, set.prefix+strconv.Itoa(i), func(n *vnode.Node, io *vnode.IO) {
				if n.Class = set.writer; i == 0 {
					n.Class = set.reader
				}
				io.Engine, io.Model = b.o.Engine, b.o.Model
			})
			if err != nil {
				return err
			}
		}
	}
	b.arm(aloneArm, "the reader alone", b.nodes[0])
	b.arm(unprotectedArm, unprotectedArm, b.nodes[0])
	b.arm(ClassesArm, ClassesArm, b.nodes[1+writers])
	b.arm(ratesArm, ratesArm, b.nodes[1+writers])
	b.switched()
	written, unprotected := float64(4*10e6), false // until the first unprotected trial tells it
	b.row(rows[0].name, func(ctx context.Context, arm string) ([]placed, error) {
		first, rate := 0, "max"
		switch arm {
		case ClassesArm:
			first = 1 + writers
		case ratesArm:
			first, rate = 1+writers, vnode.Rate(max(written/4/writers, 100e3)).String()
		}
		unprotected = arm == unprotectedArm
		jobs := []placed{{b.nodes[first], load{pattern: "randread", block: 16 << 10, depth: 1, think: 2 * time.Millisecond}}}
		if arm != aloneArm {
			for i := range writers {
				if err := b.set(ctx, first+1+i, "write.rate", rate); err != nil {
					return nil, err
				}
				jobs = append(jobs, placed{b.nodes[first+1+i], load{pattern: "randwrite", block: 256 << 10, depth: 16}})
			}
		}
		return jobs, nil
	}, func(jobs []map[string]float64) map[string]float64 {
		others := bytesOf(jobs[1:])
		if unprotected {
			written = others
		}
		return map[string]float64{
			"lat_p99_us": jobs[0]["lat_p99_us"], "lat_p50_us": jobs[0]["lat_p50_us"], "reads_per_second": jobs[0]["iops"], "written_bytes_per_second": others,
		}
	})
	return nil
}

// load is the work of one fio process.
type load struct {
	pattern string // fio's rw; "randread:16" reads 16 requests in a row from each random place
	block   int64  // bytes of a request
	depth   int    // requests in flight
	think   time.Duration
}

// mostRequest is the largest request. A larger object is read as an application reads it, one such request after the other from a
// random place on: of whole ones at 10 MB/s a trial would hold two.
const mostRequest = 1 << 20

// reads is a process that reads objects at random.
func reads(object int64, depth int) load {
	if object > mostRequest {
		return load{pattern: fmt.Sprintf("randread:%d", object/mostRequest), block: mostRequest, depth: depth}
	}
	return load{pattern: "randread", block: object, depth: depth}
}

// placed is a load and where it runs.
type placed struct {
	run side.Arm
	load
}

// command is the fio call of one process.
func (l load) command(t result.Target, run, warm time.Duration) []string {
	return fio.Job{
		Files: []string{t.Path}, Size: t.Size, Pattern: l.pattern, Block: l.block, Depth: l.depth, Think: l.think, Run: run, Warm: warm, Scatter: true,
	}.Args()
}

// togetherRun is a row of several processes that run at the same time.
type togetherRun struct {
	target result.Target
	jobs   func(ctx context.Context, arm string) ([]placed, error)
	values func([]map[string]float64) map[string]float64
}

// Measure runs the processes. When one fails the others are ended.
func (r togetherRun) Measure(ctx context.Context, a Arm, run, warm time.Duration) (map[string]float64, error) {
	jobs, err := r.jobs(ctx, a.Name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, run+warm+Lead+time.Minute)
	defer cancel()
	at := strconv.FormatInt(time.Now().Add(Lead).UnixNano(), 10)
	got := make([]map[string]float64, len(jobs))
	var once sync.Once
	var failed error
	var wg sync.WaitGroup
	for i, j := range jobs {
		wg.Go(func() {
			argv := append([]string{"/bin/sh", "-c", StartTogether, at}, j.command(r.target, run, warm)...)
			out, err := j.run(ctx, argv)
			if err == nil {
				got[i], err = fio.Read(out)
			}
			if err != nil {
				once.Do(func() { failed = fmt.Errorf("process %d of %d: %w", i+1, len(jobs), err); cancel() })
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return nil, failed
	}
	return r.values(got), nil
}
