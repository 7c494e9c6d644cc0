package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/internal/jsonfile"
)

// steadyWithin is the slope that counts as level, of fio's option steadystate: requests a second change by less than
// so much of their mean within the time that is looked at. (SNIA's performance test specification allows 10 %.)
const steadyWithin = "iops_slope:10%"

// steadyLeast is the shortest time in which fio, which counts whole seconds, can tell.
const steadyLeast = 4 * time.Second

// Turns says whether the disk is known to be a turning one. The kernel's word alone does not do: it calls virtual disks and loop
// devices rotational too, whatever they lie on, unless their driver says otherwise (Linux, block/blk-settings.c).
func (m Disk) Turns() bool {
	real := strings.HasPrefix(m.Device, "sd") || strings.HasPrefix(m.Device, "hd")
	model := strings.ToUpper(m.Model)
	for _, virtual := range []string{"QEMU", "VIRTUAL", "VBOX", "VMWARE"} {
		real = real && !strings.Contains(model, virtual)
	}
	return real && m.Rotational == "1"
}

// needsSteady says whether a trial's speed may depend on what was written before it: disks that are written, unless they
// are known to turn.
func (b *bed) needsSteady() (diskRun, bool) {
	if slices.ContainsFunc(b.targets, func(t DiskUsed) bool { return t.Turns() }) {
		return diskRun{}, false
	}
	for _, r := range b.rows {
		if j, ok := r.job.(diskRun); ok && !j.Fresh && !strings.HasSuffix(j.Pattern, "read") {
			return j, true
		}
	}
	return diskRun{}, false
}

// settle writes to a solid state disk as the experiment's first writing row does until its speed is level, within limit.
func (b *bed) settle(ctx context.Context, limit time.Duration) (*Steady, error) {
	job, needed := b.needsSteady()
	if !needed {
		return nil, nil
	}
	limit = max(limit, steadyLeast).Truncate(time.Second)
	look := max(limit/2, steadyLeast-time.Second).Truncate(time.Second)
	argv := append(job.command(limit, 0)[:1:1], "--steadystate="+steadyWithin, fmt.Sprintf("--steadystate_duration=%ds", int(look.Seconds())))
	argv = append(argv, job.command(limit, 0)[1:]...)
	ctx, cancel := context.WithTimeout(ctx, limit+time.Minute)
	defer cancel()
	start := time.Now()
	out, err := b.arms[0].run(ctx, argv)
	if err != nil {
		return nil, err
	}
	attained, err := readSteady(out)
	return &Steady{Criterion: steadyWithin, Attained: attained, Seconds: time.Since(start).Round(time.Second / 10).Seconds()}, err
}

func readSteady(out []byte) (bool, error) {
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
