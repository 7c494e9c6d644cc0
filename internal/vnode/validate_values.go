package vnode

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
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

// Allowed returns the words that a field's allowed tag lists; none if the field has no such tag.
func Allowed(tag reflect.StructTag) []string {
	if words, ok := tag.Lookup("allowed"); ok {
		return strings.Split(words, "|")
	}
	return nil
}

// Range returns the bounds in a field's range tag; ok is false if it has none.
func Range(tag reflect.StructTag) (low, high int64, ok bool) {
	from, to, ok := strings.Cut(tag.Get("range"), "..")
	if !ok {
		return 0, 0, false
	}
	low, err1 := strconv.ParseInt(from, 10, 64)
	high, err2 := strconv.ParseInt(to, 10, 64)
	return low, high, err1 == nil && err2 == nil
}

// checkText refuses control characters and broken UTF-8 in every text, because they would garble a plan, a log or a
// mount table. The command's words are exempt: they may have newlines.
func checkText(r *report, n *Node) {
	walk(reflect.ValueOf(n).Elem(), "", "", func(field string, _ reflect.StructTag, v reflect.Value) {
		if v.Kind() != reflect.String || strings.HasPrefix(field, "command[") {
			return
		}
		if s := v.String(); strings.ContainsFunc(s, unicode.IsControl) || !utf8.ValidString(s) {
			r.bad(field, "%q holds a control character or is not UTF-8", s)
		}
	})
}

// walk calls visit for every leaf below v with its field in the spec's keys, its tag and its value. It follows
// pointers, skips nil ones, and visits map keys in order.
func walk(v reflect.Value, field string, tag reflect.StructTag, visit func(string, reflect.StructTag, reflect.Value)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			walk(v.Elem(), field, tag, visit)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			walk(v.Field(i), join(field, FieldKey(f)), f.Tag, visit)
		}
	case reflect.Slice:
		for i := range v.Len() {
			walk(v.Index(i), fmt.Sprintf("%s[%d]", field, i), tag, visit)
		}
	case reflect.Map:
		for _, key := range sortedKeys(v) {
			walk(v.MapIndex(key), join(field, fmt.Sprint(key.Interface())), tag, visit)
		}
	default:
		visit(field, tag, v)
	}
}

func sortedKeys(m reflect.Value) []reflect.Value {
	keys := m.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int {
		if a.CanInt() {
			return int(min(max(a.Int()-b.Int(), -1), 1))
		}
		return strings.Compare(a.String(), b.String())
	})
	return keys
}

// FieldKey returns the key of a field in the spec, from its json tag.
func FieldKey(f reflect.StructField) string {
	key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return key
}

func join(field, key string) string {
	if field == "" || key == "" {
		return field + key
	}
	return field + "." + key
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
		limit := n.HugePages[size]
		switch {
		case size < leastPage || size&(size-1) != 0:
			r.bad(field, "%s is not a size of pages: a power of two, on x86-64 2MiB or 1GiB", size)
		case limit%size != 0:
			r.bad(field, "%s is not a whole number of %s pages", limit, size)
		}
	}
}

// RLimitNames returns the limits of setrlimit(2) in lower case.
func RLimitNames() []string {
	return []string{
		"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc",
		"rss", "rtprio", "rttime", "sigpending", "stack",
	}
}

func checkRLimits(r *report, n *Node) {
	for _, name := range slices.Sorted(maps.Keys(n.RLimits)) {
		if !slices.Contains(RLimitNames(), name) {
			r.bad("rlimits."+name, "unknown limit: %s", or(RLimitNames()))
		}
	}
}
