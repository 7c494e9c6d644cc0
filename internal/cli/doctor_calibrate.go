package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/bench/model"
	"berth/internal/host"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// calibrateFlags are the flags of berth doctor that measure a disk.
type calibrateFlags struct {
	path           string
	write, destroy bool
	time           time.Duration
	size           string
}

func (f *calibrateFlags) add(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.path, "calibrate", "", "measure the model that io.cost needs of this `DEVICE`, or of the disk under a folder, by a file there")
	fl.BoolVar(&f.write, "write", false, "with --calibrate: tell the kernel (until the next boot)")
	fl.BoolVar(&f.destroy, "destroy-data", false, "with --calibrate: write on the device itself; what it holds is lost")
	fl.DurationVar(&f.time, "time", 10*time.Second, "with --calibrate: the `TIME` of each of six measurements")
	fl.StringVar(&f.size, "size", "1GiB", "with --calibrate: the `SIZE` of what is read and written")
}

// calibrate measures a disk and prints its model.
func (a *app) calibrate(cmd *cobra.Command, f calibrateFlags) error {
	size, err := vnode.ParseBytes(f.size)
	if err != nil {
		return refuse.Invalidf("--size: %w", err)
	}
	if f.time < time.Second || f.time > time.Hour {
		return refuse.Invalidf("--time %s is not allowed: 1s to 1h", f.time)
	}
	facts, err := host.ReadFacts()
	if err != nil {
		return err
	}
	v2 := host.New().CostTree(facts.Cgroups)
	if f.write && v2 == "" {
		return refuse.Cannotf("leave --write out, or boot with cgroup v2 alone and a kernel with CONFIG_BLK_CGROUP_IOCOST",
			"--write: this host has no io.cost")
	}
	o := model.Options{Path: f.path, Destroy: f.destroy, Time: f.time, Size: int64(size), V2: v2}
	if a.onTerminal() {
		o.Say = func(text string) {
			a.eraseLine()
			fmt.Fprintf(a.Err, "%s …", text)
		}
	}
	m, err := model.Measure(cmd.Context(), o)
	if a.onTerminal() {
		a.eraseLine()
	}
	if err != nil {
		return err
	}
	if f.write {
		if err := m.Write(v2); err != nil {
			return err
		}
	}
	if a.json {
		return a.printJSON(m)
	}
	a.printModel(m, f.write)
	return nil
}

func (a *app) printModel(m *model.Model, written bool) {
	fmt.Fprintf(a.Out, "disk %s (%s), by %s of %s, scheduler %s\n", m.Disk, m.Number, m.Measured, vnode.Bytes(m.Bytes), m.Scheduler)
	what := map[string]string{
		"rbps": "bytes a second, read in sequence", "rseqiops": "reads of 4 KiB a second, in sequence", "rrandiops": "at random",
		"wbps": "bytes a second, written in sequence", "wseqiops": "writes of 4 KiB a second, in sequence", "wrandiops": "at random",
	}
	for _, k := range vnode.ModelKeys() {
		fmt.Fprintf(a.Out, "  %-10s %12d  %s\n", k, m.Numbers[k], what[k])
	}
	fmt.Fprintf(a.Out, "\nin the io entry of a spec:\n    engine: iocost\n    model: %s\n", m.Spec())
	if written {
		fmt.Fprintf(a.Out, "\nthe kernel has it until the next boot: a spec with engine: iocost needs no model of its own\n")
	}
}
