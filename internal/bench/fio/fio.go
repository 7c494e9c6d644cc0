// Package fio writes command lines of the program fio, and reads its results.
package fio

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"berth/internal/sys/jsonfile"
)

// Job is one call of fio: the same work on all of its files at once. docs/METHOD.md says why each option is there.
type Job struct {
	Files   []string
	Size    int64  // bytes of each file that are used
	Pattern string // fio's rw: read, write, randread, randwrite, randrw (half of each); "randread:16" reads 16 requests in a row from each random place
	Block   int64  // bytes of a request
	Threads int    // on each file; default 1
	Depth   int    // requests in flight a thread; default 1. More takes libaio
	Think   time.Duration
	Run     time.Duration
	Warm    time.Duration // before it, not counted
	New     bool          // the files are made, written once from begin to end and removed
	Make    bool          // the files are made and written once from begin to end; they stay
	Once    bool          // the files are written once from begin to end, over what they hold
	Scatter bool          // each call reads other places
	Cached  bool          // through the page cache; else past it (direct I/O)
	Fsync   bool          // all data is on the disk before the clock stops
	Durable bool          // each request is on the disk before the next one of its thread
	Apart   int64         // how far apart, in bytes, the threads begin in a file; 0: at the same place
}

// Reads says whether the job reads, and only reads.
func (j Job) Reads() bool {
	verb, _, _ := strings.Cut(j.Pattern, ":")
	return strings.HasSuffix(verb, "read")
}

// Args returns the command.
func (j Job) Args() []string {
	engine, depth := "psync", max(j.Depth, 1)
	if depth > 1 {
		engine = "libaio"
	}
	argv := []string{
		"fio", "--output-format=json", "--eta=never", "--size=" + strconv.FormatInt(j.Size, 10),
		"--rw=" + j.Pattern, "--bs=" + strconv.FormatInt(j.Block, 10), direct(j.Cached),
		"--ioengine=" + engine, "--iodepth=" + strconv.Itoa(depth), "--thread", "--numjobs=" + strconv.Itoa(max(j.Threads, 1)),
		"--group_reporting", "--norandommap", "--unified_rw_reporting=mixed", "--runtime=" + millis(j.Run), // 0: no limit
		"--clocksource=clock_gettime", "--disk_util=0", "--percentile_list=50:90:99:99.9",
	}
	switch {
	case j.New:
		argv = append(argv, "--create_on_open=1", "--unlink=1", "--fallocate=none")
	case j.Make:
		argv = append(argv, "--fallocate=none")
	case j.Once:
		argv = append(argv, "--allow_file_create=0")
	default:
		argv = append(argv, "--allow_file_create=0", "--time_based", "--ramp_time="+millis(j.Warm))
	}
	if j.Fsync {
		argv = append(argv, "--end_fsync=1")
	}
	if j.Durable {
		argv = append(argv, "--fsync=1")
	}
	if j.Apart > 0 {
		argv = append(argv, "--offset_increment="+strconv.FormatInt(j.Apart, 10))
	}
	if j.Scatter {
		argv = append(argv, "--randrepeat=0")
	}
	if j.Think > 0 {
		argv = append(argv, "--thinktime="+strconv.FormatInt(j.Think.Microseconds(), 10))
	}
	if j.Reads() {
		argv = append(argv, "--readonly")
	}
	for i, path := range j.Files { // options before the first name are for all jobs; a bare colon separates files
		argv = append(argv, "--name=t"+strconv.Itoa(i), "--filename="+strings.ReplaceAll(path, ":", `\:`))
	}
	return argv
}

func direct(cached bool) string {
	if cached {
		return "--direct=0"
	}
	return "--direct=1"
}

// MetaOp is what a call of fio does to each of many files.
type MetaOp string

// The operations on files: open(2) of a new one and close(2), stat(2), unlink(2).
const (
	Create MetaOp = "filecreate"
	Stat   MetaOp = "filestat"
	Unlink MetaOp = "filedelete"
)

// metaSize is given to files because fio takes none of size 0. Nothing is written to them.
const metaSize = "4096"

// MetaFile is the name of the i-th file of Metadata.
func MetaFile(i int) string { return "f." + strconv.Itoa(i) }

// Metadata returns the command that does an operation once to each of n files in a folder, one after the other.
func Metadata(op MetaOp, dir string, n int) []string {
	return []string{
		"fio", "--output-format=json", "--eta=never", "--name=t0", "--ioengine=" + string(op), "--directory=" + strings.ReplaceAll(dir, ":", `\:`),
		"--filename_format=f.$filenum", "--nrfiles=" + strconv.Itoa(n), "--filesize=" + metaSize, "--bs=" + metaSize, "--openfiles=1",
		"--file_service_type=sequential", "--fallocate=none", "--thread", "--group_reporting", "--unified_rw_reporting=mixed",
		"--clocksource=clock_gettime", "--disk_util=0", "--percentile_list=50:90:99:99.9",
	}
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) + "ms" }

// document is what is read of fio's JSON.
type document struct {
	Jobs []struct {
		Error int `json:"error"`
		Mixed struct {
			IOPS    float64 `json:"iops"`
			BWBytes float64 `json:"bw_bytes"`
			IOs     int64   `json:"total_ios"`
			IOBytes float64 `json:"io_bytes"`
			Lat     struct {
				Mean float64 `json:"mean"`
			} `json:"lat_ns"`
			CLat struct {
				Mean       float64            `json:"mean"`
				Percentile map[string]float64 `json:"percentile"`
			} `json:"clat_ns"`
		} `json:"mixed"`
	} `json:"jobs"`
}

// Read reads fio's JSON of a call with --unified_rw_reporting=mixed and --group_reporting; notes of fio's may precede it. Latencies are
// in microseconds.
func Read(out []byte) (map[string]float64, error) {
	doc, err := parse(out)
	if err != nil {
		return nil, err
	}
	d := doc.Jobs[0].Mixed
	p := d.CLat.Percentile
	return map[string]float64{
		"iops": d.IOPS, "bytes_per_second": d.BWBytes, "lat_mean_us": d.Lat.Mean / 1e3,
		"lat_p50_us": p["50.000000"] / 1e3, "lat_p90_us": p["90.000000"] / 1e3,
		"lat_p99_us": p["99.000000"] / 1e3, "lat_p999_us": p["99.900000"] / 1e3,
	}, nil
}

// Bytes returns how many bytes a call moved, those of its warm-up not counted.
func Bytes(out []byte) (float64, error) {
	doc, err := parse(out)
	if err != nil {
		return 0, err
	}
	return doc.Jobs[0].Mixed.IOBytes, nil
}

// ReadMetadata returns the operations a second of a call of Metadata: 1 / their mean time. What fio does between them does not count;
// its own rate counts it, in whole milliseconds.
func ReadMetadata(out []byte, n int) (float64, error) {
	doc, err := parse(out)
	if err != nil {
		return 0, err
	}
	d := doc.Jobs[0].Mixed
	if d.IOs != int64(n) || !(d.CLat.Mean > 0) {
		return 0, fmt.Errorf("read fio's result: %d operations on %d files", d.IOs, n)
	}
	return 1e9 / d.CLat.Mean, nil
}

// parse reads fio's JSON and refuses what is no result of one job.
func parse(out []byte) (doc document, err error) {
	start := bytes.IndexByte(out, '{')
	if start < 0 {
		return doc, errors.New("read fio's result: it printed no JSON")
	}
	if err := json.NewDecoder(bytes.NewReader(out[start:])).Decode(&doc); err != nil {
		return doc, fmt.Errorf("read fio's result: %s", jsonfile.Wrong(out[start:], err))
	}
	if len(doc.Jobs) != 1 {
		return doc, fmt.Errorf("read fio's result: %d jobs, want 1", len(doc.Jobs))
	}
	switch j := doc.Jobs[0]; {
	case j.Error != 0:
		return doc, fmt.Errorf("read fio's result: fio reports errno %d", j.Error)
	case j.Mixed.IOs <= 0 || !(j.Mixed.IOPS > 0):
		return doc, errors.New("read fio's result: not one request was completed after the warm-up")
	}
	return doc, nil
}

// ReadSteady says whether a call with --steadystate found the speed level.
func ReadSteady(out []byte) (bool, error) {
	var doc struct {
		Jobs []struct {
			Steady struct {
				Attained int `json:"attained"`
			} `json:"steadystate"`
		} `json:"jobs"`
	}
	if err := json.NewDecoder(bytes.NewReader(out[max(bytes.IndexByte(out, '{'), 0):])).Decode(&doc); err != nil {
		return false, fmt.Errorf("read whether the disk is steady: %s", jsonfile.Wrong(out, err))
	}
	return len(doc.Jobs) > 0 && doc.Jobs[0].Steady.Attained == 1, nil
}
