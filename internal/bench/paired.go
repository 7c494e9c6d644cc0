package bench

// Paired locates differences of arms that ran in one round in random order, one difference a round: the Hodges–Lehmann
// estimate, and its exact interval of level 1 − alpha, nil where there are too few rounds for it. d must not be empty.
func Paired(d []float64, alpha float64) (center float64, ci *Interval) {
	w := walsh(d)
	return (w[(len(w)-1)/2] + w[len(w)/2]) / 2, signedRankInterval(w, len(d), alpha)
}
