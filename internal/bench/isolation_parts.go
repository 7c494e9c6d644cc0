package bench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/internal/refuse"
	"berth/internal/vnode"
)

// isolationRow is a row of one part. Which fields it has depends on the part.
type isolationRow struct {
	name  string
	block int64 // bytes of an object
	count int   // a: nodes; b: competitors
	rate  int64 // b: bytes a second that are asked for
	split []int // c: percent of each node
	depth int   // c: requests in flight a node
}

// rowsOf returns the rows of a part: those of the published measurement, fewer when quick.
func rowsOf(p Part, quick bool) (rows []isolationRow) {
	pick := func(all, few []int) []int {
		if quick {
			return few
		}
		return all
	}
	switch p {
	case CostPart:
		for _, size := range []int64{16 << 10, 16 << 20} {
			for _, n := range pick([]int{1, 2, 4, 8}, []int{1, 4}) {
				rows = append(rows, isolationRow{name: fmt.Sprintf("%s x%d", vnode.Bytes(size), n), block: size, count: n})
			}
		}
	case ThrottlePart:
		for _, mb := range pick([]int{10, 20, 30, 40}, []int{10, 40}) {
			for _, n := range pick([]int{0, 1, 2, 3}, []int{0, 3}) {
				rows = append(rows, isolationRow{name: fmt.Sprintf("%d MB/s +%d", mb, n), block: ours, rate: int64(mb) * 1e6, count: n})
			}
		}
		for _, size := range pick(published2, nil) {
			for _, mb := range []int{10, 20, 30, 40} {
				for _, n := range []int{0, 3} {
					rows = append(rows, isolationRow{name: fmt.Sprintf("%d MB/s +%d %s", mb, n, vnode.Bytes(size)), block: int64(size), rate: int64(mb) * 1e6, count: n})
				}
			}
		}
	case WeightPart:
		splits := [][]int{{100}, {50, 50}, {50, 25, 25}, {40, 20, 20, 20}}
		for _, depth := range pick([]int{1, 16, 64}, []int{16}) {
			for _, split := range splits {
				rows = append(rows, isolationRow{name: splitName(split) + " q" + strconv.Itoa(depth), block: ours, split: split, depth: depth})
			}
		}
		for _, size := range pick(published2, nil) {
			for _, split := range splits {
				rows = append(rows, isolationRow{name: splitName(split) + " q16 " + vnode.Bytes(size).String(), block: int64(size), split: split, depth: 16})
			}
		}
	case LatencyPart:
		rows = []isolationRow{{name: "reader"}}
	}
	return rows
}

// ours is the size of an object in parts b and c that the published measurement has not; published2 are those that it has.
const ours = 64 << 10

var published2 = []int{16 << 10, 16 << 20}

// most is the largest request. A larger object is read as an application reads it, one such request after the other from a
// random place on: of whole ones at 10 MB/s a trial would hold two.
const most = 1 << 20

// reads is a process that reads objects at random.
func reads(object int64, depth int) load {
	if object > most {
		return load{pattern: fmt.Sprintf("randread:%d", object/most), block: most, depth: depth}
	}
	return load{pattern: "randread", block: object, depth: depth}
}

func splitName(split []int) string {
	var all []string
	for _, n := range split {
		all = append(all, strconv.Itoa(n))
	}
	return strings.Join(all, ":")
}

// The processes of the parts. Their sizes are the published measurement's where it tells them.
var (
	readerLoad = load{pattern: "randread", block: 16 << 10, depth: 1, think: 2 * time.Millisecond}
	writerLoad = load{pattern: "randwrite", block: 256 << 10, depth: 16}
)

// cost measures rows of n processes: on the host, one in each of n nodes, and on the host again.
func (r *isolationRun) cost(ctx context.Context, m *nodes, s *series[IsolationMeasured]) error {
	rows := rowsOf(CostPart, r.o.Quick)
	for i := range slices.MaxFunc(rows, func(a, b isolationRow) int { return a.count - b.count }).count {
		if err := m.add(ctx, strconv.Itoa(i+1), func(*vnode.Node, *vnode.IO) {}); err != nil {
			return err
		}
	}
	s.arms = []string{hostArm, nodeArm, nullArm}
	s.measure = func(ctx context.Context, _, row, arm int) (*IsolationMeasured, error) {
		var jobs []placed
		for i := range rows[row].count {
			p := placed{m.host.Host, load{pattern: "randread", block: rows[row].block, depth: 1}}
			if s.arms[arm] == nodeArm {
				p.run = m.arms[i]
			}
			jobs = append(jobs, p)
		}
		return r.together(ctx, jobs)
	}
	return nil
}

// throttle measures a node with a rate, beside nodes without one.
func (r *isolationRun) throttle(ctx context.Context, m *nodes, s *series[IsolationMeasured]) error {
	for i := range 4 {
		change := func(_ *vnode.Node, io *vnode.IO) {
			if i == 0 {
				io.Read.Rate = 10e6
			}
		}
		if err := m.add(ctx, strconv.Itoa(i+1), change); err != nil {
			return err
		}
	}
	rows := rowsOf(ThrottlePart, r.o.Quick)
	s.arms = []string{nodeArm}
	s.measure = func(ctx context.Context, _, row, _ int) (*IsolationMeasured, error) {
		if err := m.set(ctx, 0, "read.rate", fmt.Sprintf("%dMB/s", rows[row].rate/1e6)); err != nil {
			return nil, err
		}
		jobs := []placed{{m.arms[0], reads(rows[row].block, 4)}}
		for i := range rows[row].count {
			jobs = append(jobs, placed{m.arms[1+i], reads(rows[row].block, 16)})
		}
		return r.together(ctx, jobs)
	}
	return nil
}

// weights measures nodes that share the disk.
func (r *isolationRun) weights(ctx context.Context, m *nodes, s *series[IsolationMeasured]) error {
	for i := range 4 {
		err := m.add(ctx, strconv.Itoa(i+1), func(_ *vnode.Node, io *vnode.IO) {
			io.Weight, io.Engine, io.Model = 100, r.o.Engine, r.o.Model
		})
		if err != nil {
			return err
		}
	}
	rows := rowsOf(WeightPart, r.o.Quick)
	s.arms = []string{nodeArm}
	s.measure = func(ctx context.Context, _, row, _ int) (*IsolationMeasured, error) {
		var jobs []placed
		for i, percent := range rows[row].split {
			// 10 times the share: BFQ's scale ends at 1000, and its steps at 1 are coarse.
			if err := m.set(ctx, i, "weight", strconv.Itoa(10*percent)); err != nil {
				return nil, err
			}
			jobs = append(jobs, placed{m.arms[i], reads(rows[row].block, rows[row].depth)})
		}
		return r.together(ctx, jobs)
	}
	return nil
}

// The arms of part d.
const (
	aloneArm       = "alone"
	unprotectedArm = "unprotected"
	classesArm     = "classes" // reader storage, writers batch: weights and CPU
	ratesArm       = "rates"   // as classes, and the writers together have a quarter of what they write unprotected
)

// latency measures a reader that waits for each of its requests, beside three writers.
func (r *isolationRun) latency(ctx context.Context, m *nodes, s *series[IsolationMeasured]) error {
	if r.target.ReadsOnly {
		return refuse.Cannotf("measure a folder, or give --destroy-data", "writers are a part of it, and a device is written only with --destroy-data")
	}
	const writers = 3
	for _, set := range []struct {
		prefix         string
		reader, writer vnode.Class
	}{{"u", "", ""}, {"p", vnode.Storage, vnode.Batch}} {
		for i := range 1 + writers {
			err := m.add(ctx, set.prefix+strconv.Itoa(i), func(n *vnode.Node, io *vnode.IO) {
				if n.Class = set.writer; i == 0 {
					n.Class = set.reader
				}
				io.Engine, io.Model = r.o.Engine, r.o.Model
			})
			if err != nil {
				return err
			}
		}
	}
	s.arms = []string{aloneArm, unprotectedArm, classesArm, ratesArm}
	written := float64(4 * 10e6) // until the first unprotected trial says it
	s.measure = func(ctx context.Context, _, _, arm int) (*IsolationMeasured, error) {
		first, rate := 0, "max"
		switch s.arms[arm] {
		case classesArm:
			first = 1 + writers
		case ratesArm:
			first, rate = 1+writers, vnode.Rate(max(written/4/writers, 100e3)).String()
		}
		jobs := []placed{{m.arms[first], readerLoad}}
		if s.arms[arm] != aloneArm {
			for i := range writers {
				if err := m.set(ctx, first+1+i, "write.rate", rate); err != nil {
					return nil, err
				}
				jobs = append(jobs, placed{m.arms[first+1+i], writerLoad})
			}
		}
		got, err := r.together(ctx, jobs)
		if err == nil && s.arms[arm] == unprotectedArm {
			written = 0
			for _, j := range got.Jobs[1:] {
				written += j.Bandwidth
			}
		}
		return got, err
	}
	return nil
}
