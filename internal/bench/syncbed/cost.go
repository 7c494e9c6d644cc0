package syncbed

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"berth/internal/bench/bed"
	"berth/internal/bench/fio"
	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/bench/wire"
)

// The arms of the set cost.
const (
	outsideArm = "outside"
	groupArm   = "group"
)

// outsideAt is where the node has the mount that is served outside groups.
const outsideAt = "/mnt/outside"

// costRow is a row of the set cost.
type costRow struct {
	name   string
	write  bool
	cached bool // by the server
}

var costRows = []costRow{{name: "read from the server's memory", cached: true}, {name: "read from the disk"}, {name: "write", write: true}}

// cost measures a node without limits on one server, by a process in its group and by one in no group.
func (s *site) cost(ctx context.Context) error {
	if err := s.serve(ctx, 1); err != nil {
		return err
	}
	port, err := s.listen(ctx, s.servers[0])
	if err != nil {
		return err
	}
	_, run, err := s.node(ctx, "own", s.mount(port, outsideAt))
	if err != nil {
		return err
	}
	s.Arms = []bed.Arm{{Arm: result.Arm{Name: outsideArm, Title: "served outside groups"}, Run: run}}
	s.WithNull()
	s.Arms = append(s.Arms, bed.Arm{Arm: result.Arm{Name: groupArm, Title: "served in its group"}, Run: run})
	for _, r := range costRows {
		job := costRun{r, s, run}
		s.Rows = append(s.Rows, bed.Row{Row: result.Row{Name: r.name, Command: job.job(outsideAt, 5*time.Second, 750*time.Millisecond).Args()}, Job: job})
	}
	return nil
}

// costRun measures a row of the set cost.
type costRun struct {
	costRow
	site *site
	own  side.Arm
}

func (r costRun) job(at string, run, warm time.Duration) fio.Job {
	j := fio.Job{Files: []string{at + "/" + ownFile}, Size: r.site.o.Size, Pattern: "read", Block: request, Run: run, Warm: warm}
	if r.write {
		j.Pattern, j.Durable = "write", true
	}
	return j
}

// Measure reads or writes by the mount of the arm.
func (r costRun) Measure(ctx context.Context, a bed.Arm, run, warm time.Duration) (map[string]float64, error) {
	at := outsideAt
	if a.Name == groupArm {
		at = "/mnt/1"
	}
	prepare := func() error { return forget(r.site.on(ownFile)) }
	if r.cached {
		prepare = func() error { return load(r.site.on(ownFile)[0]) }
	}
	if err := prepare(); err != nil {
		return nil, err
	}
	if !r.cached {
		defer r.site.forgetting(ownFile, unlimited)()
	}
	before, err := wire.Busy()
	if err != nil {
		return nil, err
	}
	out, err := r.own(ctx, r.job(at, run, warm).Args())
	if err != nil {
		return nil, err
	}
	after, err := wire.Busy()
	if err != nil {
		return nil, err
	}
	got, err := fio.Read(out)
	if err != nil {
		return nil, err
	}
	// The warm-up's bytes are not in fio's count, and its CPU time is in ours: both are taken for the whole trial at the same rate.
	moved := got["bytes_per_second"] * (run + warm).Seconds()
	return map[string]float64{"bytes_per_second": got["bytes_per_second"], "cpu_s_per_gib": (after - before) / (moved / (1 << 30))}, nil
}

// load brings a file into the page cache.
func load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(io.Discard, f); err != nil {
		return fmt.Errorf("read %s into the page cache: %w", path, err)
	}
	return nil
}
