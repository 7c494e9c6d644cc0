package bed

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// stressRun is a row of the CPU experiment by stress-ng: so many instances of its matrix product at once.
type stressRun struct{ instances int }

// command runs through a shell because stress-ng prints its figures to its standard error.
func (s stressRun) command(run time.Duration) []string {
	return []string{"/bin/sh", "-c", fmt.Sprintf(
		"exec stress-ng --cpu %d --cpu-method matrixprod --timeout %ds --metrics-brief 2>&1", s.instances, max(int(run/time.Second), 1),
	)}
}

func (s stressRun) Measure(ctx context.Context, a Arm, run, _ time.Duration) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, run+time.Minute)
	defer cancel()
	out, err := a.Run(ctx, s.command(run))
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return readStress(string(out))
}

// readStress reads the line of the stressor: its name, work done, seconds, CPU seconds of programs and kernel, work a second.
func readStress(out string) (map[string]float64, error) {
	for line := range strings.Lines(out) {
		_, line, ok := strings.Cut(line, "] ")
		f := strings.Fields(line)
		if !ok || len(f) < 6 || f[0] != "cpu" {
			continue
		}
		work, err := strconv.ParseFloat(f[1], 64)
		if err != nil {
			continue // the heading, or what it is about to do
		}
		seconds, err := strconv.ParseFloat(f[2], 64)
		if err != nil || !(seconds > 0) || !(work > 0) {
			break
		}
		return map[string]float64{"ops_per_second": work / seconds}, nil
	}
	return nil, errors.New("read stress-ng's result: it printed no rate")
}

// db12Run is a row of the CPU experiment by the DIRAC benchmark of 2012: so many copies at once.
type db12Run struct{ copies int }

func (d db12Run) command() []string { return []string{"db12", "multiple", strconv.Itoa(d.copies)} }

func (d db12Run) Measure(ctx context.Context, a Arm, _, _ time.Duration) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	out, err := a.Run(ctx, d.command())
	if err != nil {
		return nil, err
	}
	return ReadDB12(string(out))
}

// ReadDB12 reads: copies, sum, arithmetic mean, geometric mean, median; a line with each copy's result follows.
func ReadDB12(out string) (map[string]float64, error) {
	line, _, _ := strings.Cut(out, "\n")
	f := strings.Fields(line)
	if len(f) < 2 {
		return nil, errors.New("read db12's result: it printed none")
	}
	sum, err := strconv.ParseFloat(f[1], 64)
	if err != nil || !(sum > 0) {
		return nil, fmt.Errorf("read db12's result: %q", line)
	}
	return map[string]float64{"db12": sum}, nil
}
