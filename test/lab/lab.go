// Package lab starts virtual machines with a real Linux kernel, systemd, cgroup v2, disks and SR-IOV adapters, for
// tests that need their own host. docs/TESTING.md describes the machines.
//
//	l := lab.Start(t, lab.Options{Machines: []lab.Machine{{Disks: []lab.Disk{{Size: 1 << 30}}}}})
//	m := l.VM(0)
//	m.Copy(t, berth, "/usr/local/bin/berth")
//	out := m.OK(t, "berth doctor")
//
// The machines are emulated (QEMU's TCG) unless a guest boots with KVM on this host. They have no connection to the outside. Only
// the labs of one process run at a time on a host. A machine ends with the test, also when the test's process is killed.
package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Options say what a lab is made of.
type Options struct {
	Machines []Machine
	Console  bool // the serial console is a shell for a person, behind VM.ConsoleSocket
}

// Machine describes one virtual machine. The zero value is a small one without disks and adapters.
type Machine struct {
	CPUs   int    // 0: 2
	Memory int    // MiB; 0: 1024
	NICs   []NIC  // in the order of their PCI addresses
	Disks  []Disk // virtio disks are vdb, vdc …; NVMe disks nvme0n1, nvme1n1 … each in the order given
	Kernel string // words added to the kernel's command line
}

// NIC is an Intel 82576 (igb) with 7 virtual functions.
type NIC struct {
	Segment string // a cable joins the two adapters of a lab with the same segment; "": not connected
}

// Disk is an empty disk that is removed with the lab.
type Disk struct {
	NVMe bool   // else virtio. A machine with an NVMe disk can have no snapshots
	Size int64  // bytes
	Rate string // QEMU's throttling, for a slow disk: "throttling.bps-total=50000000,throttling.iops-total=500"
	Hot  bool   // it can be unplugged: VM.Unplug, VM.Plug
	Root bool   // the disk holds the guests' root (ext4, read-only), which serves as an image for nodes with systemd
}

// Lab is a set of running machines.
type Lab struct {
	machines []Machine // as wished
	vms      []*VM
	dir      string // sockets, disks and logs of this run
	inside   bool   // it counts as one of the host's labs
}

// bootTime is how long a machine may take until its agent answers; it usually takes 12 to 35 s.
const bootTime = 4 * time.Minute

// Start starts the machines of a test and waits until they answer. They end with the test. Start skips the test with -short
// and where this host can run no machine.
func Start(t testing.TB, o Options) *Lab {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a longer run")
	}
	began := time.Now()
	l, err := Boot(context.Background(), o)
	if no, ok := errors.AsType[*CannotError](err); ok {
		t.Skip("needs " + no.Why)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, m := range l.vms {
				t.Logf("machine %s said last:\n%s", m.Name, m.console())
			}
		}
		l.Close()
	})
	t.Logf("%d machines up after %.0f s", len(l.vms), time.Since(began).Seconds())
	return l
}

// CannotError says that this host can run no lab, and what it lacks.
type CannotError struct{ Why string }

func (e *CannotError) Error() string { return "no lab here: it needs " + e.Why }

// Boot is Start for programs that are not tests. It waits while another process has a lab on this host. Close ends the machines.
func Boot(ctx context.Context, o Options) (_ *Lab, err error) {
	img, err := buildImage(ctx)
	if err != nil {
		return nil, err
	}
	l := &Lab{machines: o.Machines}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	if err = enterHost(ctx); err != nil {
		return nil, err
	}
	l.inside = true
	// Not t.TempDir: the path of a socket has at most 107 bytes.
	if l.dir, err = os.MkdirTemp("", "berth-lab-"); err != nil {
		return nil, err
	}
	boot, err := img.prepare(ctx, l.dir)
	if err != nil {
		return nil, err
	}
	for i, want := range o.Machines {
		m, err := newVM(l, i, want, boot, o.Console)
		if err != nil {
			return nil, err
		}
		l.vms = append(l.vms, m)
	}
	for _, m := range l.vms {
		if err := m.power(); err != nil {
			return nil, err
		}
	}
	for _, m := range l.vms {
		err := m.await()
		if err != nil && m.aborted() { // before the test has begun: QEMU's own fault, and no finding
			fmt.Fprintf(os.Stderr, "%s is started once more: %v\n", m.Name, err)
			if err = m.power(); err == nil {
				err = m.await()
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return l, nil
}

// removeOld removes the files of labs whose process was killed. The caller holds the lock, and no lab runs.
func removeOld() {
	old, _ := filepath.Glob(filepath.Join(os.TempDir(), "berth-lab-*"))
	for _, dir := range old {
		_ = os.RemoveAll(dir) // at worst it stays in the temporary folder
	}
}

// VM returns a machine by its index in Options.Machines.
func (l *Lab) VM(i int) *VM { return l.vms[i] }

// Close ends the machines and removes their files. It may be called twice.
func (l *Lab) Close() {
	for _, m := range l.vms {
		m.off()
	}
	if l.dir != "" {
		_ = os.RemoveAll(l.dir) // at worst it stays in the temporary folder
	}
	if l.inside {
		leaveHost()
	}
	l.inside = false
}

// cable returns the socket that joins two adapters, and which end of it this one is: 0 or 1.
func (l *Lab) cable(segment string, machine, nic int) (socket string, end int, err error) {
	var ends []string
	me := fmt.Sprintf("%d.%d", machine, nic)
	for i, m := range l.machines {
		for j, n := range m.NICs {
			if n.Segment == segment {
				ends = append(ends, fmt.Sprintf("%d.%d", i, j))
			}
		}
	}
	if len(ends) != 2 {
		return "", 0, fmt.Errorf("segment %q has %d ends, not 2", segment, len(ends))
	}
	if me == ends[1] {
		end = 1
	}
	return filepath.Join(l.dir, "cable-"+segment), end, nil
}
