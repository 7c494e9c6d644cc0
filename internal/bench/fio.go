package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"berth/internal/jsonfile"
	"berth/internal/refuse"
)

// command is the fio call of one trial; it is the same in every arm. Why each option is there: docs/METHOD.md.
func command(r Row, t Target, run, warm time.Duration) []string {
	argv := []string{
		"fio", "--output-format=json", "--eta=never", "--name=berth",
		"--filename=" + strings.ReplaceAll(t.Path, ":", `\:`), // a bare colon separates files
		"--allow_file_create=0", "--size=" + strconv.FormatInt(t.Size, 10),
		"--rw=" + string(r.Shape), "--bs=" + strconv.FormatInt(r.Block, 10), "--direct=1",
		"--ioengine=psync", "--thread", "--numjobs=" + strconv.Itoa(r.Jobs), "--group_reporting", "--norandommap",
		"--time_based", "--runtime=" + millis(run), "--ramp_time=" + millis(warm),
		"--clocksource=clock_gettime", "--disk_util=0", "--percentile_list=99",
	}
	if !r.Shape.Writes() {
		argv = append(argv, "--readonly")
	}
	return argv
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) + "ms" }

// Measured are the numbers of one trial, by fio's clock, the warm-up left out.
type Measured struct {
	IOPS      float64 `json:"iops"`
	Bandwidth float64 `json:"bytes_per_second"`
	LatMean   float64 `json:"lat_mean_us"` // microseconds, submission to completion
	LatP99    float64 `json:"lat_p99_us"`  // microseconds
	IOs       int64   `json:"ios"`         // requests that were counted
	RunMillis int64   `json:"run_ms"`      // the time in which they were
}

type fioJob struct {
	Error int          `json:"error"`
	Read  fioDirection `json:"read"`
	Write fioDirection `json:"write"`
}

type fioDirection struct {
	IOPS    float64 `json:"iops"`
	BWBytes float64 `json:"bw_bytes"`
	IOs     int64   `json:"total_ios"`
	Runtime int64   `json:"runtime"`
	Lat     struct {
		Mean float64 `json:"mean"`
	} `json:"lat_ns"`
	CLat struct {
		Percentile map[string]float64 `json:"percentile"`
	} `json:"clat_ns"`
}

// parseFio reads fio's JSON, which notes of fio's may precede.
func parseFio(out []byte, s Shape) (Measured, error) {
	start := bytes.IndexByte(out, '{')
	if start < 0 {
		return Measured{}, errors.New("read fio's result: it printed no JSON")
	}
	var doc struct {
		Jobs []fioJob `json:"jobs"`
	}
	if err := json.NewDecoder(bytes.NewReader(out[start:])).Decode(&doc); err != nil {
		return Measured{}, fmt.Errorf("read fio's result: %s", jsonfile.Wrong(out[start:], err))
	}
	if len(doc.Jobs) != 1 {
		return Measured{}, fmt.Errorf("read fio's result: %d jobs, want 1", len(doc.Jobs))
	}
	job := doc.Jobs[0]
	d := job.Read
	if s.Writes() {
		d = job.Write
	}
	switch {
	case job.Error != 0:
		return Measured{}, fmt.Errorf("read fio's result: fio reports errno %d", job.Error)
	case d.IOs <= 0 || d.IOPS <= 0:
		return Measured{}, errors.New("read fio's result: not one request was completed after the warm-up")
	}
	return Measured{
		IOPS: d.IOPS, Bandwidth: d.BWBytes, LatMean: d.Lat.Mean / 1e3, LatP99: d.CLat.Percentile["99.000000"] / 1e3,
		IOs: d.IOs, RunMillis: d.Runtime,
	}, nil
}

// fioVersion returns the version of fio that all arms have ("fio-3.33"). It refuses where one has none, where it is
// older than 3.0 (no nanoseconds in its JSON), and where the arms do not have the same.
func fioVersion(ctx context.Context, arms []namedArm) (string, error) {
	const remedy = "apt-get install fio"
	version := ""
	for _, a := range arms {
		out, err := a.run(ctx, []string{"fio", "--version"})
		v := strings.TrimSpace(string(out))
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case errors.Is(err, exec.ErrNotFound):
			return "", refuse.Cannotf(remedy, "fio, which does the measuring, is not installed on the %s", place(a.name))
		case err != nil:
			return "", refuse.Cannotf(remedy+", where the node's image has none: in the image", "fio does not run in the arm %s: %w", a.name, err)
		case !newEnough(v):
			return "", refuse.Cannotf(remedy, "%q on the %s is too old: fio 3.0 or newer is needed", v, place(a.name))
		case version != "" && v != version:
			return "", refuse.Cannotf("use one version in both, as image host does", "the arms do not have the same fio: %s and, in the arm %s, %s", version, a.name, v)
		}
		version = v
	}
	return version, nil
}

func place(arm string) string {
	if arm == nodeArm {
		return "node"
	}
	return "host"
}

func newEnough(version string) bool {
	major, _, _ := strings.Cut(strings.TrimPrefix(version, "fio-"), ".")
	n, err := strconv.Atoi(major)
	return err == nil && n >= 3
}
