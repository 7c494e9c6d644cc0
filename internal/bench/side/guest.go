package side

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"berth/internal/bench/result"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// Guest is what an arm is made of that is a virtual machine.
type Guest struct {
	vnode.Machine
	Image string `json:"image"` // a packed image, which has the programs that measure
}

// The memory and the most CPUs of a guest. 512 threads of fio want some hundreds of MiB.
const (
	guestMemory   = 1 << 30
	mostGuestCPUs = 64
)

// Complete fills in the defaults: as many CPUs as the host has. It refuses a guest without an image or a kernel.
func (g *Guest) Complete() error {
	if g.Image == "" || g.Kernel == "" {
		return refuse.Invalidf("--machine takes image=PATH, as berth image pack writes it, and kernel=PATH")
	}
	if g.CPUs == 0 {
		g.CPUs = min(runtime.NumCPU(), mostGuestCPUs)
	}
	if g.Memory == 0 {
		g.Memory = guestMemory
	}
	return nil
}

// Spec is the node of the arm, without disks.
func (g *Guest) Spec() *vnode.Node {
	n := &vnode.Node{
		Name: fmt.Sprintf("bench-%d-machine", os.Getpid()), Kind: vnode.MachineKind, Machine: g.Machine,
		Image: vnode.Image{Kind: vnode.FileImage, Ref: g.Image}, Command: []string{"sleep", "infinity"}, Delta: vnode.Delta{In: vnode.InMemory},
	}
	vnode.Defaults(n)
	return n
}

// Parts is the guest without its image, as berth run --machine takes it.
func (g *Guest) Parts() string {
	parts := fmt.Sprintf("kernel=%s,cpus=%d,memory=%d", g.Kernel, g.CPUs, g.Memory)
	if g.Accel != "" {
		parts += ",accel=" + g.Accel
	}
	return parts
}

// AskCPU is the command by which a guest tells its CPU.
func AskCPU() []string { return []string{"cat", "/proc/cpuinfo"} }

// Emulation says what emulates the CPU of a guest, as its own kernel calls that, "" where nothing does.
func Emulation(ctx context.Context, guest Arm) (string, error) {
	out, err := guest(ctx, AskCPU())
	if err != nil {
		return "", fmt.Errorf("ask for the machine's CPU: %w", err)
	}
	return EmulationOf(string(out))
}

// EmulationOf is Emulation by what AskCPU printed.
func EmulationOf(cpuinfo string) (string, error) {
	for line := range strings.Lines(cpuinfo) {
		if key, cpu, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return result.Emulation(strings.TrimSpace(cpu)), nil
		}
	}
	return "", errors.New("ask for the machine's CPU: its kernel names none")
}

// ClockReading is what a guest's clock showed, and between which moments of the host's clock it was read.
type ClockReading struct {
	Guest    float64 // seconds since the guest's kernel began, counted by its own clock
	From, To time.Time
}

// uptimeStep is the unit of /proc/uptime in seconds (proc_uptime(5)).
const uptimeStep = .01

// ReadClock reads the clock of a guest.
func ReadClock(ctx context.Context, guest Arm) (r ClockReading, err error) {
	r.From = time.Now()
	out, err := guest(ctx, []string{"cat", "/proc/uptime"})
	r.To = time.Now()
	if err != nil {
		return r, fmt.Errorf("read the machine's clock: %w", err)
	}
	up, _, _ := strings.Cut(string(out), " ")
	if r.Guest, err = strconv.ParseFloat(up, 64); err != nil {
		return r, fmt.Errorf("read the machine's clock: its /proc/uptime is %q", out)
	}
	return r, nil
}

// FastPct is by how much the guest's clock runs faster than the host's, in percent (below 0: slower): between low and high, by what
// it showed before and now. Programs in a guest count their work by its clock.
func (r ClockReading) FastPct(before ClockReading) (low, high float64) {
	passed, least, most := r.Guest-before.Guest, r.From.Sub(before.To).Seconds(), r.To.Sub(before.From).Seconds()
	return 100 * ((passed-uptimeStep)/most - 1), 100 * ((passed+uptimeStep)/least - 1)
}
