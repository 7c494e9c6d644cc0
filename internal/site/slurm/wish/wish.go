// Package wish reads the limits that a Slurm job asks for on its nodes, beside what Slurm itself allots. They can only lower the limits of
// the nodes' template.
package wish

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"berth/internal/spec/template"
	"berth/internal/sys/refuse"
	"berth/internal/sys/suggest"
)

// Begins is how a comment with wishes begins. Berth ignores other comments.
const Begins = "berth:"

const (
	longestComment = 1024
	mostWishes     = 32
)

// Wishes are values of limits, by their names as in berth set.
type Wishes map[string]string

var (
	keys = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`\A(cpu|memory|hugepages|pids|rlimits|net|io)(\.[A-Za-z0-9_-]{1,48}){0,3}\z`)
	})
	values = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A[0-9][0-9A-Za-z./]{0,31}\z`) })
)

// Parse reads the comment of a job (sbatch --comment): berth: memory.max=1GiB,io.data.read.rate=50MB/s. A comment that does not begin so has no
// wishes. The error is a refusal of kind Invalid.
func Parse(comment string) (Wishes, error) {
	rest, ok := strings.CutPrefix(comment, Begins)
	if !ok {
		return nil, nil
	}
	if len(rest) > longestComment {
		return nil, refuse.Invalidf("the comment has more than %d characters", longestComment)
	}
	all := Wishes{}
	for one := range strings.SplitSeq(rest, ",") {
		one = strings.Trim(one, " ")
		key, value, isPair := strings.Cut(one, "=")
		switch {
		case !isPair:
			return nil, refuse.Invalidf("comment: %.40q is no wish: LIMIT=VALUE, as in %s memory.max=1GiB,io.data.read.rate=50MB/s", one, Begins)
		case !keys().MatchString(key):
			return nil, refuse.Invalidf("comment: %.40q is no limit: cpu.max, memory.max, io.NAME.read.rate and others that the template lets jobs lower", key)
		case !values().MatchString(value):
			return nil, refuse.Invalidf("comment: %s=%.40q: a value is a number, with its unit", key, value)
		case all[key] != "":
			return nil, refuse.Invalidf("comment: %s is there twice", key)
		}
		all[key] = value
		if len(all) > mostWishes {
			return nil, refuse.Invalidf("comment: more than %d wishes", mostWishes)
		}
	}
	return all, nil
}

// Parameters are the values of a template's parameters that fulfil wishes. The template's agent holds each value against the template's own,
// and refuses what would raise it.
func (w Wishes) Parameters(of map[string]template.Parameter) (map[string]any, error) {
	all := map[string]any{}
	byField := map[string]string{}
	for name, p := range of {
		if p.Type != template.String && p.Type != template.Choice && p.Type != template.List && keys().MatchString(p.Sets) {
			byField[p.Sets] = name
		}
	}
	fields := slices.Sorted(maps.Keys(byField))
	for _, key := range slices.Sorted(maps.Keys(w)) {
		name, ok := byField[key]
		if !ok {
			hint := "it has " + strings.Join(fields, ", ")
			if meant := suggest.To(key, fields); meant != "" {
				hint = "did you mean " + meant + "?"
			}
			if len(fields) == 0 {
				hint = "it has none"
			}
			return nil, refuse.Invalidf("comment: %s is no limit that this template lets jobs lower; %s", key, hint)
		}
		all[name] = w[key]
	}
	return all, nil
}
