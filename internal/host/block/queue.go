package block

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Queue is a disk with a request queue, on which weights can act, and what it offers for weights.
type Queue struct {
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
	Name  string `json:"name"`
	Seq   uint64 `json:"seq,omitempty"` // the kernel's sequence number of this disk, never reused before a reboot

	Scheduler string `json:"scheduler"`          // the one in use: none, mq-deadline, bfq …
	Requests  int    `json:"requests,omitempty"` // nr_requests: how many may wait in it
	BFQ       bool   `json:"bfq"`                // the kernel has BFQ, at least as a module
	Cost      bool   `json:"cost"`               // the kernel has io.cost, on the cgroup v2 tree
	CostOn    bool   `json:"cost_on"`            // io.cost is on for this disk
	CostModel bool   `json:"cost_model"`
	Loan      *Loan  `json:"loan,omitempty"` // the change by Berth for running nodes

	ok bool // it has a queue
}

// Number returns the disk's number as the kernel writes it: "254:0".
func (q Queue) Number() string { return number(q.Major, q.Minor) }

func number(major, minor uint32) string { return fmt.Sprintf("%d:%d", major, minor) }

// queue reads the scheduler of a disk. A device that takes bios has no queue: its file says "none" without brackets
// (block/elevator.c: elv_iosched_show), or does not exist.
func (d *device) queue() Queue {
	q := Queue{Major: d.major, Minor: d.minor, Name: d.name, Seq: d.seq()}
	text := d.text("queue/scheduler")
	for f := range strings.FieldsSeq(text) {
		if name, ok := strings.CutPrefix(f, "["); ok {
			q.Scheduler, q.ok = strings.TrimSuffix(name, "]"), true
		}
	}
	q.Requests, _ = strconv.Atoi(d.text(requests))
	q.BFQ = slices.Contains(strings.Fields(strings.NewReplacer("[", "", "]", "").Replace(text)), "bfq")
	return q
}

// Offers says where, besides a disk's own folder in sysfs, it is read which weights the disk can honour.
type Offers struct {
	V2      string // mount of the cgroup v2 tree, if it has the io controller, else ""
	Modules string // folder of the running kernel's modules; "" to find it
	Loans   Loans
}

// Look fills in which weights the disks under d can honour.
func (d *Disk) Look(o Offers) error {
	for i := range d.Queues {
		q := &d.Queues[i]
		q.BFQ = q.BFQ || hasModule(o.Modules, "bfq")
		if o.V2 != "" {
			qos, err := costLine(o.V2, "io.cost.qos", q.Number())
			q.Cost = err == nil
			q.CostOn = strings.Contains(qos, " enable=1")
			model, _ := costLine(o.V2, "io.cost.model", q.Number()) // it exists if io.cost.qos does
			q.CostModel = strings.Contains(model, " ctrl=user")
		}
		loan, err := o.Loans.Of(*q)
		if err != nil {
			return err
		}
		q.Loan = loan
	}
	return nil
}

// costLine reads a disk's line of io.cost.qos or io.cost.model, in a form that can be written back; "" if io.cost was never
// on for the disk.
func costLine(v2, file, number string) (string, error) {
	b, err := os.ReadFile(filepath.Join(v2, file))
	if err != nil {
		return "", fmt.Errorf("read what io.cost has: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, number+" ") {
			return strings.TrimSpace(line), nil
		}
	}
	return "", nil
}

// hasModule reports whether the running kernel has a module, loaded or not. The kernel loads a scheduler's module when the
// scheduler is chosen.
func hasModule(dir, name string) bool {
	if dir == "" {
		var u unix.Utsname
		if unix.Uname(&u) != nil {
			return false
		}
		dir = "/lib/modules/" + unix.ByteSliceToString(u.Release[:])
	}
	for _, list := range []string{"modules.dep", "modules.builtin"} {
		b, err := os.ReadFile(filepath.Join(dir, list))
		if err == nil && strings.Contains(string(b), "/"+name+".ko") {
			return true
		}
	}
	return false
}
