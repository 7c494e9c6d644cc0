package headline

import (
	"fmt"
	"slices"
	"strings"
)

// Arm is one way in which nodes and the service share the machine. The nodes run the same processes in all arms.
type Arm struct {
	Name  string
	Says  string   // for the report, at most 44 characters
	Half  bool     // the service is idle half of the time
	Nodes string   // kind of the two nodes: plain, batch, cpu, disk; "": none work
	Group string   // their cgroup, below /sys/fs/cgroup
	By    string   // arguments of berth protect; "": it is not called
	Lines []string // shell lines that an admin types instead; $cg is the cgroup, $dev the disk's number, $q its queue folder
	With  string   // prefix of each command of the nodes
	Full  bool     // the nodes use the disk fully; used by the test of carry-over
	Job   bool     // the work is two jobs of Slurm, whose nodes slurm-resume makes
	Class string   // of these nodes
}

// Arms that other code names. In those that begin with "half/" the service is idle half of the time.
const (
	Alone       = "alone"
	Unprotected = "unprotected"
	Protected   = "protect"
	Strict      = "protect-strict"
	CPUOnly     = "cpu-only"
	DiskOnly    = "disk-only"
	IOMax       = "io.max"
	IOMaxCPU    = "io.max+cpu"
	Ionice      = "ionice"
	BFQWeights  = "bfq-weights"

	Slurm          = "slurm"
	SlurmAgain     = "slurm-again"
	SlurmProtected = "slurm-protect"

	HalfProtected = "half/protect"
	HalfStrict    = "half/strict"
	HalfIOMaxCPU  = "half/io.max+cpu"
)

// Shell text that several arms share.
const (
	capDisk    = `echo "$dev rbps=$rbps wbps=$wbps" >$cg/io.max`
	leastCPU   = `echo 1 >$cg/cpu.weight`
	diskModel  = "rbps=%[1]d rseqiops=%[2]d rrandiops=%[2]d wbps=%[1]d wseqiops=%[2]d wrandiops=%[2]d"
	withDisk   = "--disk /srv/slow --engine "
	plainGroup = "berth"
	batchGroup = "berth.batch"
	slurmNodes = "slurm"
)

// arms returns all arms, in the order of the report. model is the argument of berth protect --model.
func arms(model string) []Arm {
	iocost := withDisk + "iocost --model '" + model + "'"
	strict := withDisk + "bfq-strict"
	return []Arm{
		{Name: Alone, Says: "no node works"},
		{Name: Unprotected, Says: "nodes without a class, nothing else", Nodes: "plain", Group: plainGroup, Full: true},
		{Name: Protected, Says: "berth protect --engine iocost, class batch", Nodes: "batch", Group: batchGroup, By: iocost},
		{Name: Strict, Says: "berth protect --engine bfq-strict, batch", Nodes: "batch", Group: batchGroup, By: strict, Full: true},
		{Name: CPUOnly, Says: "of protect: the nodes' idle CPU alone", Nodes: "cpu", Group: "berth.idle", Full: true},
		{Name: DiskOnly, Says: "of protect: iocost and disk weights alone", Nodes: "disk", Group: "berth.batch-busy", By: iocost},
		{Name: IOMax, Says: "io.max, what protect lets the nodes do", Nodes: "plain", Group: plainGroup, Lines: []string{capDisk}},
		{Name: IOMaxCPU, Says: "the same, and cpu.weight=1", Nodes: "plain", Group: plainGroup, Lines: []string{capDisk, leastCPU}},
		{
			Name: Ionice, Says: "mq-deadline; ionice -c3 nice -n19", Nodes: "plain", Group: plainGroup, With: "ionice -c3 nice -n19", Full: true,
			Lines: []string{`echo mq-deadline >$q/scheduler`},
		},
		{Name: BFQWeights, Says: "bfq; weights 1 to 1000, cpu.weight=1", Nodes: "plain", Group: plainGroup, Full: true, Lines: []string{
			`echo bfq >$q/scheduler`, `echo 1 >$cg/io.bfq.weight`, `echo 1000 >/sys/fs/cgroup/system.slice/io.bfq.weight`, leastCPU,
		}},
		{Name: HalfProtected, Says: "as protect", Half: true, Nodes: "batch", Group: batchGroup, By: iocost},
		{Name: HalfStrict, Says: "as protect-strict", Half: true, Nodes: "batch", Group: batchGroup, By: strict, Full: true},
		{Name: HalfIOMaxCPU, Says: "as io.max+cpu", Half: true, Nodes: "plain", Group: plainGroup, Lines: []string{capDisk, leastCPU}},
		{Name: Slurm, Says: "jobs of Slurm in nodes without a class", Nodes: slurmNodes, Group: plainGroup, Full: true, Job: true},
		{Name: SlurmAgain, Says: "the same again", Nodes: slurmNodes, Group: plainGroup, Full: true, Job: true},
		{Name: SlurmProtected, Says: "jobs of Slurm, protect and class batch", Nodes: slurmNodes, Group: batchGroup, By: iocost, Job: true, Class: "batch"},
	}
}

// Names returns the names of all arms, in the order of the report.
func Names() []string {
	var all []string
	for _, a := range arms("") {
		all = append(all, a.Name)
	}
	return all
}

// choose returns the arms with these names, in the order of the report; if names is empty, all that need no Slurm.
func choose(names []string, model string) ([]Arm, error) {
	all := arms(model)
	for _, n := range names {
		if !slices.Contains(Names(), n) {
			return nil, fmt.Errorf("no arm is called %q: there are %s", n, strings.Join(Names(), ", "))
		}
	}
	if len(names) == 0 {
		return slices.DeleteFunc(all, func(a Arm) bool { return a.Job }), nil
	}
	return slices.DeleteFunc(all, func(a Arm) bool { return !slices.Contains(names, a.Name) }), nil
}

// model returns io.cost's model of the disk, at pct percent of the disk's real speed.
func model(pct int) string { return fmt.Sprintf(diskModel, diskBytes/100*pct, diskRequests*pct/100) }
