// Package hostlist writes and reads lists of node names in Slurm's form: st01-[01-03,07],st02-01.
package hostlist

import (
	"fmt"
	"strconv"
	"strings"

	"berth/internal/sys/refuse"
)

// most is the most names that a list may stand for: the most nodes that Slurm counts.
const most = 65533

// Expand returns the names that a list stands for, in its order. It is stricter than Slurm: a list that Slurm would have to
// guess is refused.
func Expand(list string) ([]string, error) {
	var all []string
	for rest := list; rest != ""; {
		one, after, more := cut(rest)
		if one == "" || more && after == "" {
			return nil, refuse.Invalidf("list of nodes %.80q: a name is missing", list)
		}
		names, err := expand(one, most-len(all))
		if err != nil {
			return nil, refuse.Invalidf("list of nodes %.80q: %w", list, err)
		}
		all, rest = append(all, names...), after
	}
	return all, nil
}

// cut takes the first name of a list, up to a comma that stands in no bracket.
func cut(list string) (one, rest string, more bool) {
	inside := false
	for i, c := range list {
		switch c {
		case '[':
			inside = true
		case ']':
			inside = false
		case ',':
			if !inside {
				return list[:i], list[i+1:], true
			}
		}
	}
	return list, "", false
}

// expand returns the names that one name with brackets stands for, at most room of them.
func expand(name string, room int) ([]string, error) {
	plain, rest, open := strings.Cut(name, "[")
	if err := check(plain); err != nil {
		return nil, err
	}
	all := []string{plain}
	for open {
		ranges, after, closed := strings.Cut(rest, "]")
		if !closed {
			return nil, fmt.Errorf("a bracket is not closed")
		}
		numbers, err := numbersOf(ranges, room/max(len(all), 1))
		if err != nil {
			return nil, err
		}
		if plain, rest, open = strings.Cut(after, "["); plain != "" && !open && digit(plain[0]) {
			return nil, fmt.Errorf("digits behind a bracket: Slurm does not take them at the end of a name")
		}
		if err := check(plain); err != nil {
			return nil, err
		}
		longer := make([]string, 0, len(all)*len(numbers))
		for _, before := range all {
			for _, n := range numbers {
				longer = append(longer, before+n+plain)
			}
		}
		all = longer
	}
	if len(all) > room {
		return nil, fmt.Errorf("it stands for more than %d names", most)
	}
	return all, nil
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

func check(plain string) error {
	for _, c := range []byte(plain) {
		if !(digit(c) || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || strings.IndexByte("._-", c) >= 0) {
			return fmt.Errorf("%q is not for names", string(rune(c)))
		}
	}
	return nil
}

// numbersOf returns the numbers of a bracket, with the zeros that each range begins with.
func numbersOf(ranges string, room int) (all []string, err error) {
	for one := range strings.SplitSeq(ranges, ",") {
		first, last, isRange := strings.Cut(one, "-")
		if !isRange {
			last = first
		}
		from, err := number(first)
		if err != nil {
			return nil, err
		}
		to, err := number(last)
		if err != nil {
			return nil, err
		}
		switch {
		case to < from:
			return nil, fmt.Errorf("the range %.40q goes backwards", one)
		case to-from >= room-len(all):
			return nil, fmt.Errorf("it stands for more than %d names", most)
		}
		for n := from; n <= to; n++ {
			all = append(all, fmt.Sprintf("%0*d", len(first), n))
		}
	}
	return all, nil
}

// longest is the most digits of a number that is counted.
const longest = 9

func number(s string) (int, error) {
	for _, c := range []byte(s) {
		if !digit(c) {
			return 0, fmt.Errorf("%.40q is no number", s)
		}
	}
	if s == "" || len(s) > longest {
		return 0, fmt.Errorf("%.40q is no number of at most %d digits", s, longest)
	}
	return strconv.Atoi(s)
}

// Compress writes names as a list, in their order: those that follow each other by their last number become a range.
func Compress(names []string) string {
	var b strings.Builder
	for i := 0; i < len(names); {
		prefix, digits := split(names[i])
		end := i + 1
		for digits != "" && end < len(names) {
			if p, d := split(names[end]); p != prefix || d == "" {
				break
			}
			end++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		if end == i+1 {
			b.WriteString(names[i])
		} else {
			b.WriteString(prefix + "[" + ranges(names[i:end], len(prefix)) + "]")
		}
		i = end
	}
	return b.String()
}

// ranges writes the numbers of names that have a prefix in common.
func ranges(names []string, prefix int) string {
	var all []string
	for i := 0; i < len(names); {
		first := names[i][prefix:]
		from, _ := number(first)
		end := i + 1
		for end < len(names) && names[end][prefix:] == fmt.Sprintf("%0*d", len(first), from+end-i) {
			end++
		}
		one := first
		if end > i+1 {
			one += "-" + names[end-1][prefix:]
		}
		all, i = append(all, one), end
	}
	return strings.Join(all, ",")
}

// split takes the last number off a name; digits is "" where there is none that is counted.
func split(name string) (prefix, digits string) {
	prefix = strings.TrimRight(name, "0123456789")
	if digits = name[len(prefix):]; len(digits) > longest {
		return name, ""
	}
	return prefix, digits
}
