package stat

import "slices"

// Corrected is decide for adjusted p-values.
func Corrected(differ, equal, penaltyPct float64) Verdict {
	switch {
	case equal <= 0.05:
		return Equivalent
	case differ <= 0.05 && penaltyPct > 0:
		return Worse
	case differ <= 0.05:
		return Better
	}
	return Undecided
}

// Holm returns the p-values adjusted for how many there are, in their order: S. Holm, A Simple Sequentially Rejective
// Multiple Test Procedure, Scandinavian Journal of Statistics 6 (1979). It holds whatever their dependence.
func Holm(p []float64) []float64 {
	order := make([]int, len(p))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case p[a] < p[b]:
			return -1
		case p[a] > p[b]:
			return 1
		}
		return 0
	})
	adjusted := make([]float64, len(p))
	most := 0.0
	for rank, i := range order {
		most = max(most, min(1, float64(len(p)-rank)*p[i]))
		adjusted[i] = most
	}
	return adjusted
}
