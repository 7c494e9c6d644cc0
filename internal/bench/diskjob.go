package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"berth/internal/jsonfile"
)

// diskJob is a row of a disk experiment: what fio does on each of the targets at once.
type diskJob struct {
	Name    string  // of the row
	Value   float64 // on the experiment's axis
	Pattern string  // fio's rw: read, write, randread, randwrite, randrw (half of each)
	Block   int64   // bytes of a request
	Threads int     // on each target; default 1
	Depth   int     // requests in flight a thread; default 1. More takes libaio
	Cold    bool    // the kernel's caches are dropped before each trial
	Fresh   bool    // a new file is written once from its begin to its end; a device, which has none, over what it holds
}

// diskRun is a diskJob on its targets.
type diskRun struct {
	diskJob
	targets []Target
}

// command is the fio call of one trial, the same in every arm. Why each option is there: docs/METHOD.md.
func (j diskRun) command(run, warm time.Duration) []string {
	engine, depth := "psync", max(j.Depth, 1)
	if depth > 1 {
		engine = "libaio"
	}
	argv := []string{
		"fio", "--output-format=json", "--eta=never", "--size=" + strconv.FormatInt(j.targets[0].Size, 10),
		"--rw=" + j.Pattern, "--bs=" + strconv.FormatInt(j.Block, 10), "--direct=1",
		"--ioengine=" + engine, "--iodepth=" + strconv.Itoa(depth), "--thread", "--numjobs=" + strconv.Itoa(max(j.Threads, 1)),
		"--group_reporting", "--norandommap", "--unified_rw_reporting=mixed", "--runtime=" + millis(run),
		"--clocksource=clock_gettime", "--disk_util=0", "--percentile_list=50:90:99:99.9",
	}
	suffix := ""
	switch {
	case j.newFile():
		suffix = freshName
		argv = append(argv, "--create_on_open=1", "--unlink=1", "--fallocate=none")
	case j.Fresh:
		argv = append(argv, "--allow_file_create=0")
	default:
		argv = append(argv, "--allow_file_create=0", "--time_based", "--ramp_time="+millis(warm))
	}
	if strings.HasSuffix(j.Pattern, "read") {
		argv = append(argv, "--readonly")
	}
	for i, t := range j.targets { // options before the first name are for all jobs; a bare colon separates files
		argv = append(argv, "--name=t"+strconv.Itoa(i), "--filename="+strings.ReplaceAll(t.Path+suffix, ":", `\:`))
	}
	return argv
}

// newFile says whether a trial writes a file that it makes.
func (j diskRun) newFile() bool { return j.Fresh && j.targets[0].Kind == "file" }

func (j diskRun) measure(ctx context.Context, a bedArm, run, warm time.Duration) (_ map[string]float64, err error) {
	if j.newFile() { // empty, and known as Berth's whenever a run is killed
		path := j.targets[0].Path + freshName
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
	out, err := a.run(ctx, j.command(run, warm))
	if err != nil {
		return nil, err
	}
	return readFio(out)
}

// readFio reads the JSON of a call with --unified_rw_reporting=mixed; notes of fio's may precede it.
func readFio(out []byte) (map[string]float64, error) {
	start := bytes.IndexByte(out, '{')
	if start < 0 {
		return nil, errors.New("read fio's result: it printed no JSON")
	}
	var doc struct {
		Jobs []struct {
			Error int          `json:"error"`
			Mixed fioDirection `json:"mixed"`
		} `json:"jobs"`
	}
	if err := json.NewDecoder(bytes.NewReader(out[start:])).Decode(&doc); err != nil {
		return nil, fmt.Errorf("read fio's result: %s", jsonfile.Wrong(out[start:], err))
	}
	if len(doc.Jobs) != 1 {
		return nil, fmt.Errorf("read fio's result: %d jobs, want 1", len(doc.Jobs))
	}
	d := doc.Jobs[0].Mixed
	switch {
	case doc.Jobs[0].Error != 0:
		return nil, fmt.Errorf("read fio's result: fio reports errno %d", doc.Jobs[0].Error)
	case d.IOs <= 0 || !(d.IOPS > 0):
		return nil, errors.New("read fio's result: not one request was completed after the warm-up")
	}
	p := d.CLat.Percentile
	return map[string]float64{
		"iops": d.IOPS, "bytes_per_second": d.BWBytes, "lat_mean_us": d.Lat.Mean / 1e3,
		"lat_p50_us": p["50.000000"] / 1e3, "lat_p90_us": p["90.000000"] / 1e3,
		"lat_p99_us": p["99.000000"] / 1e3, "lat_p999_us": p["99.900000"] / 1e3,
	}, nil
}
