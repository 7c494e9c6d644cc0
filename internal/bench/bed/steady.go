package bed

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/internal/bench/fio"
	"berth/internal/bench/result"
)

// steadyWithin is the slope that counts as level, of fio's option steadystate: requests a second change by less than
// so much of their mean within the time that is looked at. (SNIA's performance test specification allows 10 %.)
const steadyWithin = "iops_slope:10%"

// steadyLeast is the shortest time in which fio, which counts whole seconds, can tell.
const steadyLeast = 4 * time.Second

// needsSteady says whether a trial's speed may depend on what was written before it: disks that are written, unless they
// are known to turn.
func (b *Bed) needsSteady() (DiskRun, bool) {
	if slices.ContainsFunc(b.Targets, func(t result.DiskUsed) bool { return t.Turns() }) {
		return DiskRun{}, false
	}
	for _, r := range b.Rows {
		if j, ok := r.Job.(DiskRun); ok && !j.Fresh && !strings.HasSuffix(j.Pattern, "read") {
			return j, true
		}
	}
	return DiskRun{}, false
}

// Settle writes to a solid state disk as the experiment's first writing row does until its speed is level, within limit.
func (b *Bed) Settle(ctx context.Context, limit time.Duration) (*result.Steady, error) {
	job, needed := b.needsSteady()
	if !needed {
		return nil, nil
	}
	limit = max(limit, steadyLeast).Truncate(time.Second)
	look := max(limit/2, steadyLeast-time.Second).Truncate(time.Second)
	argv := append(job.Command(limit, 0)[:1:1], "--steadystate="+steadyWithin, fmt.Sprintf("--steadystate_duration=%ds", int(look.Seconds())))
	argv = append(argv, job.Command(limit, 0)[1:]...)
	ctx, cancel := context.WithTimeout(ctx, limit+time.Minute)
	defer cancel()
	start := time.Now()
	out, err := b.Arms[0].Run(ctx, argv)
	if err != nil {
		return nil, err
	}
	attained, err := fio.ReadSteady(out)
	return &result.Steady{Criterion: steadyWithin, Attained: attained, Seconds: time.Since(start).Round(time.Second / 10).Seconds()}, err
}
