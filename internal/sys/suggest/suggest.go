// Package suggest finds the allowed word that a mistyped word probably means.
package suggest

import "strings"

// To returns the word of allowed that is nearest to word; "" if none is near. A word is near if few letters differ. If
// no word is, To returns the only one that begins with word or that word begins with. Of two words equally near, it
// returns the one with the longer common prefix.
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

// begin returns the length of the common prefix of a and b.
func begin(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// distance returns how many letters to insert, delete, replace or swap with their neighbour turn a into b (optimal
// string alignment). If a is much longer than any key, the distance is a large constant.
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
