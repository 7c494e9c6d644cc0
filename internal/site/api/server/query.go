package server

import (
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"berth/internal/sys/refuse"
)

// param is a parameter of the query.
type param struct {
	name, about string
	kind        string // string | integer | boolean
	most        int64  // of an integer, which is 0 or more
	many        bool   // may be given several times
	words       []string
}

// query is the parameters of a request, checked.
type query struct{ values url.Values }

func (q query) text(name string) string  { return q.values.Get(name) }
func (q query) all(name string) []string { return q.values[name] }
func (q query) yes(name string) bool     { return q.values.Get(name) == "true" }

// number returns an integer parameter, or its default.
func (q query) number(name string, without int64) int64 {
	n, err := strconv.ParseInt(q.values.Get(name), 10, 64)
	if err != nil {
		return without
	}
	return n
}

// readQuery reads the parameters of a request: none may be unknown, or given twice.
func readQuery(raw string, known []param) (query, error) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return query{}, refuse.Invalidf("read the query: %w", err)
	}
	for name, given := range values {
		i := slices.IndexFunc(known, func(p param) bool { return p.name == name })
		if i < 0 {
			return query{}, refuse.Invalidf("there is no parameter %q%s", name, listed(known))
		}
		p := known[i]
		if len(given) > 1 && !p.many {
			return query{}, refuse.Invalidf("%s is given %d times: once", name, len(given))
		}
		for _, v := range given {
			if err := p.check(v); err != nil {
				return query{}, err
			}
		}
	}
	return query{values}, nil
}

func listed(known []param) string {
	if len(known) == 0 {
		return ": this path takes none"
	}
	names := make([]string, len(known))
	for i, p := range known {
		names[i] = p.name
	}
	return ": there are " + strings.Join(names, ", ")
}

func (p param) check(v string) error {
	switch {
	case p.kind == "boolean" && v != "true" && v != "false":
		return refuse.Invalidf("%s=%q: want true or false", p.name, v)
	case p.kind == "integer":
		if n, err := strconv.ParseInt(v, 10, 64); err != nil || n < 0 || n > p.largest() {
			return refuse.Invalidf("%s=%q: want a whole number from 0 to %d", p.name, v, p.largest())
		}
	case len(p.words) > 0 && !slices.Contains(p.words, v):
		return refuse.Invalidf("%s=%q: want %s", p.name, v, strings.Join(p.words, ", "))
	}
	return nil
}

// largest is the largest value of an integer.
func (p param) largest() int64 {
	if p.most == 0 {
		return math.MaxInt32
	}
	return p.most
}
