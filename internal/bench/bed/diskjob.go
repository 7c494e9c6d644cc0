package bed

import (
	"context"
	"errors"
	"os"
	"time"

	"berth/internal/bench/fio"
	"berth/internal/bench/result"
)

// writes says whether the job writes.
func (j Job) writes() bool { return !fio.Job{Pattern: j.Pattern}.Reads() }

// Job is a row of a disk experiment: what fio does on each of the targets at once.
type Job struct {
	Name    string  // of the row
	Value   float64 // on the experiment's axis
	Pattern string  // fio's rw: read, write, randread, randwrite, randrw (half of each)
	Block   int64   // bytes of a request
	Threads int     // on each target; default 1
	Depth   int     // requests in flight a thread; default 1. More takes libaio
	Cold    bool    // the kernel's caches are dropped before each trial
	Fresh   bool    // a new file is written once from its begin to its end; a device, which has none, over what it holds
}

// DiskRun is a Job on its targets.
type DiskRun struct {
	Job
	targets []result.Target
}

// Command is the fio call of one trial, the same in every arm.
func (j DiskRun) Command(run, warm time.Duration) []string {
	job := fio.Job{
		Size: j.targets[0].Size, Pattern: j.Pattern, Block: j.Block, Threads: j.Threads, Depth: j.Depth, Run: run, Warm: warm,
		New: j.newFile(), Once: j.Fresh && !j.newFile(),
	}
	for _, t := range j.targets {
		path := t.Path
		if job.New {
			path += FreshName
		}
		job.Files = append(job.Files, path)
	}
	return job.Args()
}

// newFile says whether a trial writes a file that it makes.
func (j DiskRun) newFile() bool { return j.Fresh && j.targets[0].Kind == "file" }

// Measure runs fio once in an arm and returns what it measured.
func (j DiskRun) Measure(ctx context.Context, a Arm, run, warm time.Duration) (_ map[string]float64, err error) {
	if j.newFile() { // empty, and known as Berth's whenever a run is killed
		path := j.targets[0].Path + FreshName
		f, e := newFile(path)
		if e != nil {
			return nil, e
		}
		defer func() {
			e := os.Remove(path) // fio does it itself, as a rule
			if errors.Is(e, os.ErrNotExist) {
				e = nil
			}
			err = errors.Join(err, e, f.Close())
		}()
	}
	// A request that never ends must not hold the run for ever; a slow disk under many threads may take its time.
	ctx, cancel := context.WithTimeout(ctx, run+warm+time.Minute)
	defer cancel()
	out, err := a.Run(ctx, j.Command(run, warm))
	if err != nil {
		return nil, err
	}
	return fio.Read(out)
}
