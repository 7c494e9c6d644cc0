package reconcile

import "testing"

// TestDrained: what slurmctld 22.05 drains a node for is told from what admins write.
func TestDrained(t *testing.T) {
	for reason, want := range map[string]bool{
		"Low TmpDisk":                            true,
		"Duplicate jobid":                        true,
		"Kill task failed twice":                 false,
		"Low CPUs":                               true,
		"Low socket*core*thread count":           true,
		"Low socket*core*thread count, Low CPUs": true,
		"Low RealMemory (reported:400 < 100.00% of configured:512)":        true,
		"gres/scratch count reported lower than configured (0 < 33554432)": true,
		"Low RealMemory in slot 3":                                         false,
		"gres/gpu broken":                                                  false,
		"new disk":                                                         false,
		"":                                                                 false,
	} {
		if got := drained.MatchString(reason); got != want {
			t.Errorf("%q: %v", reason, got)
		}
	}
}
