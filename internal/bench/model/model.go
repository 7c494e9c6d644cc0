// Package model measures a disk with fio, to get the six numbers of io.cost's linear model.
package model

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"berth/internal/bench/fio"
	"berth/internal/host/block"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// Options configure a measurement.
type Options struct {
	Path    string        // a folder, or a device; without Destroy, a folder that it is mounted on is used
	Destroy bool          // write to the device itself: its data are lost
	Time    time.Duration // duration of each of the six measurements
	Size    int64         // bytes to read and write; fewer if less space is there
	V2      string        // mount point of the cgroup v2 tree with io.cost; "" if there is none
	Say     func(string)  // called with each step; may be nil
}

// Model is the result of measuring a disk.
type Model struct {
	Disk      string           `json:"disk"`                // the kernel's name of the disk
	Number    string           `json:"number"`              // "259:0"
	Measured  string           `json:"measured"`            // the device, or the folder of the temporary file
	Bytes     int64            `json:"bytes"`               // size of the measured part
	Scheduler string           `json:"scheduler,omitempty"` // I/O scheduler during the measurement
	Numbers   map[string]int64 `json:"numbers"`             // by the names in io.cost.model
}

// Spec returns the model as a spec's io entry takes it: "rbps=… rseqiops=… …".
func (m *Model) Spec() string {
	words := make([]string, 0, len(m.Numbers))
	for _, k := range vnode.ModelKeys() {
		words = append(words, k+"="+strconv.FormatInt(m.Numbers[k], 10))
	}
	return strings.Join(words, " ")
}

// Line returns the model as the kernel's io.cost.model takes it.
func (m *Model) Line() string { return m.Number + " ctrl=user model=linear " + m.Spec() }

// Write writes the model to the kernel and reads it back. It does not enable io.cost. The model lasts until the next
// boot.
func (m *Model) Write(v2 string) error {
	file := filepath.Join(v2, "io.cost.model")
	if err := os.WriteFile(file, []byte(m.Line()), 0); err != nil {
		return fmt.Errorf("write the model %q: %w", m.Line(), err)
	}
	got, err := os.ReadFile(file)
	if err == nil && !strings.Contains(string(got), m.Line()) {
		err = fmt.Errorf("write the model %q to %s: the kernel has %q", m.Line(), file, got)
	}
	return err
}

// shape is how one number of a model is measured. Operations are of 4 KiB, as the kernel defines them.
type shape struct {
	key, rw, block string
	jobs           int
	depth          int
}

func shapes() []shape {
	random := min(4, runtime.NumCPU()) // one thread does not fill a fast disk
	return []shape{
		{"rbps", "read", "1M", 1, 16},
		{"rseqiops", "read", "4k", 1, 64},
		{"rrandiops", "randread", "4k", random, 64},
		{"wbps", "write", "1M", 1, 16},
		{"wseqiops", "write", "4k", 1, 64},
		{"wrandiops", "randwrite", "4k", random, 64},
	}
}

// Measure measures a disk. Without Destroy it uses an unnamed file, which the kernel removes when this process ends.
func Measure(ctx context.Context, o Options) (*Model, error) {
	if o.Say == nil {
		o.Say = func(string) {}
	}
	if _, err := exec.LookPath("fio"); err != nil {
		return nil, refuse.Cannotf("apt-get install fio", "fio, which does the measuring, is not installed")
	}
	on, err := find(o)
	if err != nil {
		return nil, err
	}
	defer on.file.Close()
	if on.queue.CostOn {
		return nil, refuse.Busyf("io.cost is on for disk %s and would be measured with it: echo '%s enable=0' > %s/io.cost.qos switches it off",
			on.queue.Name, on.queue.Number(), o.V2)
	}
	m := &Model{
		Disk: on.queue.Name, Number: on.queue.Number(), Measured: on.title, Bytes: on.size,
		Scheduler: on.queue.Scheduler, Numbers: map[string]int64{},
	}
	// Reads of blocks never written may not reach the disk, and the first write to a block is slower.
	o.Say("writing once what is measured then")
	if _, err := on.fio(ctx, shape{"fill", "write", "1M", 1, 16}, 0); err != nil {
		return nil, err
	}
	for _, s := range shapes() {
		o.Say(s.key)
		if m.Numbers[s.key], err = on.fio(ctx, s, o.Time); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// fio measures one number: bytes per second, or operations per second.
func (p *target) fio(ctx context.Context, s shape, d time.Duration) (int64, error) {
	args := []string{
		"--name=berth", "--output-format=json", "--eta=never", "--filename=" + p.path, "--allow_file_create=0",
		"--size=" + strconv.FormatInt(p.size, 10), "--rw=" + s.rw, "--bs=" + s.block, "--direct=1", "--ioengine=libaio",
		"--iodepth=" + strconv.Itoa(s.depth), "--numjobs=" + strconv.Itoa(s.jobs), "--group_reporting", "--thread",
		"--norandommap", "--unified_rw_reporting=mixed", "--randrepeat=0", "--invalidate=0", "--disk_util=0",
	}
	if d > 0 {
		args = append(args, "--time_based", "--runtime="+strconv.FormatInt(d.Milliseconds(), 10)+"ms", "--ramp_time=500ms")
	}
	cmd := exec.CommandContext(ctx, "fio", args...)
	cmd.ExtraFiles = []*os.File{p.file} // file descriptor 3
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("measure %s on %s: fio: %w: %s", s.key, p.title, err, strings.TrimSpace(errs.String()))
	}
	n, err := parse(out, s)
	if err != nil {
		return 0, fmt.Errorf("measure %s on %s: %w", s.key, p.title, err)
	}
	return n, nil
}

// parse takes the number that is measured from fio's JSON.
func parse(out []byte, s shape) (int64, error) {
	v, err := fio.Read(out)
	if err != nil {
		return 0, err
	}
	n := v["iops"]
	if strings.HasSuffix(s.key, "bps") {
		n = v["bytes_per_second"]
	}
	if n < 1 {
		return 0, errors.New("fio completed no request")
	}
	return int64(n), nil
}

// queueOf returns the queue of the disk to measure: io.cost works on a disk with its own queue.
func queueOf(d block.Disk, v2 string) (block.Queue, error) {
	switch {
	case len(d.Queues) == 0:
		return block.Queue{}, refuse.Cannotf("", "io.cost has no effect on %s", d.NoWeight)
	case len(d.Queues) > 1:
		return block.Queue{}, refuse.Cannotf("measure each disk by itself", "%s lies on %d disks", d.Asked, len(d.Queues))
	}
	err := d.Look(block.Offers{V2: v2})
	return d.Queues[0], err
}
