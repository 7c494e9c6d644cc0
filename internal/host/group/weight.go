package group

// MaxBFQWeight is BFQ's greatest weight (block/bfq-iosched.h). The scale is 1..1000; 100 is normal.
const MaxBFQWeight = 1000

// Shares of the v1 CPU controller: 1024 is normal, the kernel clamps to these bounds (kernel/sched/core.c).
const (
	normalShares = 1024
	minShares    = 2
	maxShares    = 1 << 18
)

// Shares maps a weight (1..10000, 100 is normal) to v1 shares: weight × 1024 / 100, in the kernel's bounds.
func Shares(weight int64) int64 {
	return min(max(weight*normalShares/100, minShares), maxShares)
}
