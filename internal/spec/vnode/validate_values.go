package vnode

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// checkValues checks every value against the allowed and range tags of its field. Numbers without a range must not be
// negative.
func checkValues(r *report, n *Node) {
	walk(reflect.ValueOf(n).Elem(), "", "", func(field string, tag reflect.StructTag, v reflect.Value) {
		if words := Allowed(tag); len(words) > 0 && v.String() != "" && !slices.Contains(words, v.String()) {
			r.bad(field, "%q is not allowed: %s", v.String(), or(words))
		}
		if !v.CanInt() {
			return
		}
		if low, high, ok := Range(tag); ok && v.Int() != 0 && (v.Int() < low || v.Int() > high) {
			r.bad(field, "%d is not allowed: %d to %d", v.Int(), low, high)
		} else if !ok && v.Int() < 0 {
			r.bad(field, "%d is below 0", v.Int())
		}
	})
}

// checkText refuses control characters and broken UTF-8 in every text, because they would garble a plan, a log or a
// mount table. The command's words and the environment's values are exempt: they may have newlines.
func checkText(r *report, n *Node) {
	walk(reflect.ValueOf(n).Elem(), "", "", func(field string, _ reflect.StructTag, v reflect.Value) {
		if v.Kind() != reflect.String || strings.HasPrefix(field, "command[") || strings.HasPrefix(field, "health.command[") || strings.HasPrefix(field, "env.") {
			return
		}
		if s := v.String(); strings.ContainsFunc(s, unicode.IsControl) || !utf8.ValidString(s) {
			r.bad(field, "%q holds a control character or is not UTF-8", s)
		}
	})
}

func checkCPU(r *report, n *Node) {
	if set, err := ParseCPUSet(string(n.CPU.Set)); err != nil {
		r.bad("cpu.set", "%s", err)
	} else if set != n.CPU.Set {
		r.bad("cpu.set", "%q is not in the kernel's form: %q", n.CPU.Set, set)
	}
}

func checkMemory(r *report, n *Node) {
	m := n.Memory
	var more []string // keys of limits above memory.max
	var first Bytes   // value of the first of them
	for _, f := range []struct {
		key   string
		value Bytes
	}{{"memory.max", m.Max}, {"memory.high", m.High}, {"memory.low", m.Low}, {"memory.min", m.Min}} {
		if f.value > 0 {
			checkLeast(r, f.key, f.value)
		}
		if m.Max > 0 && f.value > m.Max {
			if more = append(more, f.key); len(more) == 1 {
				first = f.value
			}
		}
	}
	switch {
	case len(more) == 1:
		r.badIf([]string{"memory.max"}, more[0], "%s is more than memory.max, which is %s", first, m.Max)
	case len(more) > 1: // then memory.max is more likely the mistake
		r.bad("memory.max", "%s is less than %s", m.Max, strings.Join(more, " and "))
	}
}

func checkHugePages(r *report, n *Node) {
	const leastPage = 1 << 14 // 16KiB, the smallest that any Linux architecture calls huge
	for _, size := range slices.Sorted(maps.Keys(n.HugePages)) {
		field := "hugepages." + size.String()
		most := n.HugePages[size]
		switch {
		case size < leastPage || size&(size-1) != 0:
			r.bad(field, "%s is not a size of pages: a power of two, on x86-64 2MiB or 1GiB", size)
		case most%size != 0:
			r.bad(field, "%s is not a whole number of %s pages", most, size)
		}
	}
}

func checkRLimits(r *report, n *Node) {
	for _, name := range slices.Sorted(maps.Keys(n.RLimits)) {
		if !slices.Contains(RLimitNames(), name) {
			r.bad("rlimits."+name, "unknown limit: %s", or(RLimitNames()))
		}
	}
}

// leastBytes is the smallest limit or volume. Anything smaller is a forgotten unit, and no process fits in it.
const leastBytes = 1 << 20

func checkLeast(r *report, field string, b Bytes) {
	if b < leastBytes {
		r.bad(field, "%d bytes cannot work: at least 1MiB (a bare number is bytes: is the unit missing?)", int64(b))
	}
}
