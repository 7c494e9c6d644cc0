package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// load is what one fio process does.
type load struct {
	pattern string // fio's rw; "randread:16" reads 16 requests in a row from each random place
	block   int64  // bytes of a request
	depth   int    // requests in flight
	think   time.Duration
}

// placed is a load and where it runs.
type placed struct {
	run Arm
	load
}

// lead is how long before its begin a process is started: longer than a node takes to start one.
const lead = 400 * time.Millisecond

// startTogether waits until the moment in $0 (seconds since 1970) and then becomes the rest of the arguments, so that the
// processes of a trial begin at once, however long each took to be started.
const startTogether = `n=$(date +%s%N); d=$(($0 - n)); [ $d -gt 0 ] && sleep $((d / 1000000000)).$(printf %09d $((d % 1000000000))); exec "$@"`

// command is the fio call of one process.
func (l load) command(t Target, run, warm time.Duration) []string {
	argv := []string{
		"fio", "--output-format=json", "--eta=never", "--name=berth",
		"--filename=" + strings.ReplaceAll(t.Path, ":", `\:`), "--allow_file_create=0", "--size=" + strconv.FormatInt(t.Size, 10),
		"--rw=" + l.pattern, "--bs=" + strconv.FormatInt(l.block, 10), "--direct=1", "--thread", "--norandommap",
		"--time_based", "--runtime=" + millis(run), "--ramp_time=" + millis(warm), "--randrepeat=0",
		"--unified_rw_reporting=mixed", "--clocksource=clock_gettime", "--disk_util=0", "--percentile_list=50:90:99:99.9",
	}
	if l.depth > 1 {
		argv = append(argv, "--ioengine=libaio", "--iodepth="+strconv.Itoa(l.depth))
	} else {
		argv = append(argv, "--ioengine=psync")
	}
	if l.think > 0 {
		argv = append(argv, "--thinktime="+strconv.FormatInt(l.think.Microseconds(), 10))
	}
	if strings.Contains(l.pattern, "read") {
		argv = append(argv, "--readonly")
	}
	return argv
}

// together runs processes at the same time. When one fails the others are ended.
func (r *isolationRun) together(ctx context.Context, jobs []placed) (*IsolationMeasured, error) {
	ctx, cancel := context.WithTimeout(ctx, r.o.Run+r.o.Warm+lead+time.Minute)
	defer cancel()
	at := strconv.FormatInt(time.Now().Add(lead).UnixNano(), 10)
	got, errs := make([]JobMeasured, len(jobs)), make([]error, len(jobs))
	var once sync.Once
	var failed error
	var wg sync.WaitGroup
	for i, j := range jobs {
		wg.Go(func() {
			argv := append([]string{"/bin/sh", "-c", startTogether, at}, j.command(r.target, r.o.Run, r.o.Warm)...)
			out, err := j.run(ctx, argv)
			if err == nil {
				got[i], err = jobMeasured(out)
			}
			if errs[i] = err; err != nil {
				once.Do(func() { failed = fmt.Errorf("process %d of %d: %w", i+1, len(jobs), err); cancel() })
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return nil, failed
	}
	return &IsolationMeasured{Jobs: got}, nil
}

func jobMeasured(out []byte) (JobMeasured, error) {
	v, err := readFio(out)
	if err != nil {
		return JobMeasured{}, err
	}
	return JobMeasured{IOPS: v["iops"], Bandwidth: v["bytes_per_second"], LatP50: v["lat_p50_us"], LatP99: v["lat_p99_us"]}, nil
}
