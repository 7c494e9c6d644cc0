package limits

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/internal/bench/stat"
	"berth/internal/host"
	"berth/internal/host/counters"
	"berth/test/testkit"
)

// tolerated is the factor by which one second may exceed the limit: a period of the CPU quota or a slice of the throttle.
const tolerated = 1.15

// TestSetTakesEffectWithinASecond lowers limits of a node that uses all it gets: the kernel has them when berth set ends, and its counters show
// that they are kept. Where the run measures, they show so in the second that begins one second after the start of berth set, even if
// berth set still runs then.
func TestSetTakesEffectWithinASecond(t *testing.T) {
	mostlyWaits(t)
	w := newWorld(t, true)
	cg, err := host.ReadCgroups("/proc")
	if err != nil {
		t.Fatal(err)
	}
	w.node("eager", "cpu: {max: 0.8}\nio: [{name: data, device: "+w.disk+", read: {rate: 40MB/s}}]\n")
	group := ""
	for line := range strings.Lines(w.run("show", "eager")) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "cgroup" {
			group = f[1]
		}
	}
	meter := counters.NewMeter(cg, true)
	read := func() (cpu time.Duration, bytes int64) {
		c, ok := meter.Read(group)
		if !ok {
			t.Fatalf("no group %s", group)
		}
		for _, d := range c.Disks {
			if strconv.Itoa(int(d.Major))+":"+strconv.Itoa(int(d.Minor)) == w.diskNumber {
				bytes = d.ReadBytes
			}
		}
		return c.CPU, bytes
	}
	reader := w.inNode("eager", "while :; do dd if="+w.disk+" of=/dev/null bs=128k iflag=direct 2>/dev/null; done")
	spinner := w.inNode("eager", "while :; do :; done")
	defer reader()
	defer spinner()
	time.Sleep(time.Second)

	if !testkit.Measures() {
		w.lowered(read)
		return
	}
	var cpus, rates []float64
	for range stat.MinPairs { // the fewest rounds that give an interval
		asked := time.Now()
		var took time.Duration
		set := make(chan error, 1)
		go func() {
			err := w.Command("set", "eager", "cpu.max=0.2", "io.data.read.rate=4MB/s").Run()
			took = time.Since(asked)
			set <- err
		}()
		time.Sleep(time.Second - time.Since(asked)) // even if set has not returned
		from := time.Now()
		cpu0, bytes0 := read()
		time.Sleep(time.Second)
		cpu1, bytes1 := read()
		past := time.Since(from).Seconds()
		used, rate := (cpu1-cpu0).Seconds()/past, float64(bytes1-bytes0)/past
		if err := <-set; err != nil {
			t.Fatalf("berth set: %v", err)
		}
		t.Logf("set took %.0f ms; from one second after it was called: 0.2 CPUs asked, %.3f used; 4 MB/s asked, %.2f read", took.Seconds()*1e3, used, rate/1e6)
		if used < 0.02 || rate < 1e5 {
			t.Fatalf("the node did nothing: %.3f CPUs, %.2f MB/s", used, rate/1e6)
		}
		cpus, rates = append(cpus, used), append(rates, rate)
		w.run("set", "eager", "cpu.max=0.8", "io.data.read.rate=40MB/s")
		time.Sleep(500 * time.Millisecond)
	}
	cpu, rate := stat.SerialEstimate(cpus).Center, stat.SerialEstimate(rates).Center
	if cpu > 0.2*tolerated || rate > 4e6*tolerated {
		t.Errorf("one second after set: %.3f CPUs of 0.2, %.2f MB/s of 4, by %d rounds", cpu, rate/1e6, len(cpus))
	}
}

// lowered lowers the limits once. What is used for some seconds after berth set has ended is not more than the new limits allow since its
// begin: the kernel had them from some moment between. Since its end the node used more than half of the CPU time that it may have, and read
// something: a fifth of a CPU is what the reader and the spinner have together, so what is read depends on the machine.
func (w *world) lowered(read func() (cpu time.Duration, bytes int64)) {
	w.t.Helper()
	begunCPU, begunBytes := read()
	testkit.Eventually(w.t, "the node works", func() bool { cpu, bytes := read(); return cpu > begunCPU && bytes > begunBytes })
	asked := time.Now()
	w.run("set", "eager", "cpu.max=0.2", "io.data.read.rate=4MB/s")
	cpu0, bytes0 := read()
	ended := time.Now()
	w.asks("eager", "cpu.max", "0.2")
	w.asks("eager", "io.data.read.rate", "4MB/s")
	time.Sleep(4 * time.Second) // of which a period of the CPU quota and a slice of the throttle are 2.5 % each
	cpu1, bytes1 := read()
	most, least := time.Since(asked).Seconds(), time.Since(ended).Seconds()
	used, got := (cpu1 - cpu0).Seconds(), float64(bytes1-bytes0)/1e6
	w.t.Logf("%.3f CPUs of 0.2, %.2f MB/s of 4", used/least, got/least)
	if used > 1.05*0.2*most || used < 0.5*0.2*least {
		w.t.Errorf("%.3f s of CPU time were used in %.2f s, %.2f s after the begin of set, of 0.2 a second", used, least, most)
	}
	if got > 1.05*4*most || got < 0.1*least {
		w.t.Errorf("%.2f MB were read in %.2f s, %.2f s after the begin of set, of 4 a second", got, least, most)
	}
}

// inNode runs a script in a node until stop is called.
func (w *world) inNode(node, script string) (stop func()) {
	w.t.Helper()
	log, err := os.CreateTemp(w.Dir(), "log")
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := w.Command("exec", node, "--", "/bin/sh", "-c", script)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
	}
}
