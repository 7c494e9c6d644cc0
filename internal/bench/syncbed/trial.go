package syncbed

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"berth/internal/bench/bed"
	"berth/internal/bench/fio"
	"berth/internal/bench/result"
	"berth/internal/bench/side"
)

// request is the size of a request, bytes.
const request = 1 << 20

// unlimited is more than a node without a limit moves here in a second, bytes.
const unlimited = 1e9

// aggregate measures a node with a rate on n servers together.
func (s *site) aggregate(ctx context.Context, n int, rows []row) error {
	if err := s.serve(ctx, n); err != nil {
		return err
	}
	name, own, err := s.node(ctx, "own")
	if err != nil {
		return err
	}
	_, other, err := s.node(ctx, "other")
	if err != nil {
		return err
	}
	s.Arms = []bed.Arm{
		{Arm: result.Arm{Name: result.Asked, Title: "what was asked"}},
		{Arm: result.Arm{Name: result.Node, Title: "node with a rate"}, Run: own},
	}
	for _, r := range rows {
		run := &aggregateRun{row: r, site: s, node: name, own: own, other: other}
		row := bed.Row{Row: result.Row{Name: r.name, Command: run.job(5*time.Second, 3*time.Second).Args()}, Job: run}
		if r.rate > 0 {
			row.Asked = map[string]float64{"bytes_per_second": float64(r.rate)}
		}
		s.Rows = append(s.Rows, row)
	}
	return nil
}

// aggregateRun is a row of the set aggregate.
type aggregateRun struct {
	row
	site       *site
	node       string // its name
	own, other side.Arm
}

// job is what the clients of the node do.
func (r *aggregateRun) job(run, warm time.Duration) fio.Job {
	n := len(r.site.servers)
	j := fio.Job{Pattern: "read", Block: request, Size: r.site.o.Size, Run: run, Warm: warm}
	if r.write {
		j.Pattern, j.Durable = "write", true
	}
	if r.one {
		j.Files, j.Threads = []string{"/mnt/1/" + ownFile}, n
		j.Size = r.site.o.Size / int64(n) / request * request
		j.Apart = j.Size
		return j
	}
	j.Files = r.site.inNode(ownFile)
	return j
}

// inNode is a file on each server, as nodes see it; on is the same as the servers do.
func (s *site) inNode(name string) (all []string) {
	for i := range s.servers {
		all = append(all, filepath.Join("/mnt", strconv.Itoa(i+1), name))
	}
	return all
}

func (s *site) on(name string) (all []string) {
	for _, v := range s.servers {
		all = append(all, filepath.Join(v.served, name))
	}
	return all
}

// Measure gives the node its rate, and lets it work alone or beside the other one.
func (r *aggregateRun) Measure(ctx context.Context, _ bed.Arm, run, warm time.Duration) (map[string]float64, error) {
	s, key := r.site, "read.rate"
	if r.write {
		key = "write.rate"
	}
	if err := s.allow(ctx, r.node, key, r.rate); err != nil {
		return nil, err
	}
	defer s.forgetting(ownFile, float64(r.rate))()
	jobs := []placed{{r.own, r.job(run, warm).Args()}}
	if r.beside {
		defer s.forgetting(otherFile, unlimited)()
		j := fio.Job{Files: s.inNode(otherFile), Size: s.o.Size, Pattern: "read", Block: request, Run: run, Warm: warm}
		jobs = append(jobs, placed{r.other, j.Args()})
	}
	if err := forget(append(s.on(ownFile), s.on(otherFile)...)); err != nil {
		return nil, err
	}
	got, err := together(ctx, run+warm, jobs)
	if err != nil {
		return nil, err
	}
	values := map[string]float64{"bytes_per_second": got[0]["bytes_per_second"]}
	if r.beside {
		values["others_bytes_per_second"] = got[1]["bytes_per_second"]
	}
	return values, nil
}

// forgetting keeps a file of each server out of its page cache while a node reads it at a rate, over and over.
func (s *site) forgetting(name string, rate float64) (end func()) {
	if rate == 0 {
		rate = unlimited
	}
	return forgetting(s.on(name), time.Duration(float64(s.o.Size)/2/rate*float64(time.Second)))
}

// placed is a call of fio, and where it runs.
type placed struct {
	run  side.Arm
	argv []string
}

// together runs calls of fio that begin at the same moment, and returns what each measured. When one fails the others are ended.
func together(ctx context.Context, takes time.Duration, jobs []placed) ([]map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, takes+bed.Lead+time.Minute)
	defer cancel()
	at := strconv.FormatInt(time.Now().Add(bed.Lead).UnixNano(), 10)
	got, errs := make([]map[string]float64, len(jobs)), make([]error, len(jobs))
	var wg sync.WaitGroup
	for i, j := range jobs {
		wg.Go(func() {
			out, err := j.run(ctx, append([]string{"/bin/sh", "-c", bed.StartTogether, at}, j.argv...))
			if err == nil {
				got[i], err = fio.Read(out)
			}
			if err != nil {
				errs[i] = fmt.Errorf("process %d of %d: %w", i+1, len(jobs), err)
				cancel()
			}
		})
	}
	wg.Wait()
	return got, errors.Join(errs...)
}
