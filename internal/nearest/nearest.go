// Package nearest finds the word that somebody probably meant, among those that there are.
package nearest

import "strings"

// To returns the word of allowed that word is nearest to; "" if none is near. Near is: few letters differ, or it is the
// only one that begins with word, or with which word begins. Of two as near, it is the one that begins more like word.
func To(word string, allowed []string) string {
	meant, best, same := "", max(1, min(3, len(word)/2)), -1
	for _, a := range allowed {
		d, n := distance(word, a), begin(word, a)
		if d < best || d == best && n > same {
			best, meant, same = d, a, n
		}
	}
	if meant != "" || len(word) < 2 {
		return meant
	}
	for _, a := range allowed {
		longer := strings.HasPrefix(word, a) && len(a) >= 3 && len(word) <= 2*len(a)+1
		if !longer && !strings.HasPrefix(a, word) {
			continue
		}
		if meant != "" {
			return ""
		}
		meant = a
	}
	return meant
}

// begin is the number of letters that both begin with.
func begin(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// distance is the number of letters to insert, delete, replace or swap with their neighbour to make b of a
// (optimal string alignment). Words much longer than keys are far from everything.
func distance(a, b string) int {
	const longest = 40
	if len(a) > longest {
		return longest
	}
	var before, last, row []int
	for i := range len(a) + 1 {
		before, last, row = last, row, make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			if i == 0 {
				row[j] = j
				continue
			}
			replaced := last[j-1]
			if a[i-1] != b[j-1] {
				replaced++
			}
			row[j] = min(last[j]+1, row[j-1]+1, replaced)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
