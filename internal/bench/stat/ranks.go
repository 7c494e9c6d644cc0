package stat

import (
	"math"
	"slices"
)

// RankSums returns the two-sided p-value of the hypothesis that both groups of each stratum have the same distribution, and the
// median of the differences between the groups. The statistic is the sum of the strata's Mann–Whitney counts. If the order was drawn at random, its
// distribution is the convolution of theirs (Mann and Whitney 1947; strata: van Elteren 1960, with equal weights). Equal values count for
// neither side. Above exactPairs comparisons the normal approximation is used.
func RankSums(strata [][2][]float64) (p, shift float64) {
	var differences []float64
	more, less, pairs, mean, variance := 0, 0, 0, 0.0, 0.0
	for _, s := range strata {
		for _, a := range s[0] {
			for _, b := range s[1] {
				differences = append(differences, a-b)
				switch d := tied(a - b); {
				case d > 0:
					more++
				case d < 0:
					less++
				}
			}
		}
		m, n := float64(len(s[0])), float64(len(s[1]))
		pairs += len(s[0]) * len(s[1])
		mean, variance = mean+m*n/2, variance+m*n*(m+n+1)/12
	}
	if pairs == 0 {
		return 1, 0
	}
	shift = MedianOf(differences)
	u := max(more, less) // at least so many, on one side
	if pairs > exactPairs {
		return min(1, math.Erfc((float64(u)-.5-mean)/math.Sqrt(2*variance))), shift
	}
	q := []float64{1}
	for _, s := range strata {
		q = convolve(q, mannWhitney(len(s[0]), len(s[1])))
	}
	for _, v := range slices.Backward(q[u:]) {
		p += v
	}
	return min(1, 2*p), shift
}

const exactPairs = 4000

// mannWhitney returns P(U = u) for u = 0 … m·n of samples of m and n: the largest value belongs to the first sample with probability
// m/(m+n), and is then above all n values of the second.
func mannWhitney(m, n int) []float64 {
	rows := make([][]float64, n+1) // of m' so far, by n'
	for j := range rows {
		rows[j] = []float64{1}
	}
	for i := 1; i <= m; i++ {
		next := make([][]float64, n+1)
		next[0] = []float64{1}
		for j := 1; j <= n; j++ {
			q := make([]float64, i*j+1)
			mine, theirs := float64(i)/float64(i+j), float64(j)/float64(i+j)
			for u, v := range rows[j] {
				q[u+j] += mine * v
			}
			for u, v := range next[j-1] {
				q[u] += theirs * v
			}
			next[j] = q
		}
		rows = next
	}
	return rows[n]
}

func convolve(a, b []float64) []float64 {
	c := make([]float64, len(a)+len(b)-1)
	for i, x := range a {
		for j, y := range b {
			c[i+j] += x * y
		}
	}
	return c
}
