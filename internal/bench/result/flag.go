package result

// Flag is a reason to read a row with care.
type Flag string

// The flags.
const (
	SchedulerBound Flag = "scheduler-bound" // more than 16 threads a core: the host itself waits for CPUs
	TrialError     Flag = "trial-error"     // a trial failed; its block is left out
	Disturbed      Flag = "disturbed"       // more than a tenth of the trials lie far from the median of their arm
	ArmsDiffer     Flag = "null-differs"    // the null arm itself is called worse or better
	Drifts         Flag = "drifts"          // the reference's last third differs from its first by more than a tenth
	NotSteady      Flag = "not-steady"      // a solid state disk did not reach its steady state within the time there was
	EmulatedCPU    Flag = "emulated-cpu"    // of a comparison of two runs: the CPU of the row's arm is emulated in one of them
)
