package vnode

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

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

// Setting is one limit of a node by its key, as in "berth set NAME KEY=VALUE".
type Setting struct {
	Key   string // "io.data.read.rate"
	Value string // "100MB/s"
}

// Max is the value that clears a limit.
const Max = "max"
