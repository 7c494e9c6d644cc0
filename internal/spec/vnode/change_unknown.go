package vnode

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"berth/internal/sys/suggest"
)

// unknownKey returns the error for a key that a node does not have. It names the key that was probably meant and all
// keys of the node.
func unknownKey(n *Node, key string) error {
	keys := slices.DeleteFunc(Settable(n), func(k string) bool {
		return strings.HasPrefix(k, "hugepages.") || strings.HasPrefix(k, "rlimits.")
	})
	keys = append(keys, AddDevice, TakeDevice, "rlimits.NAME", "hugepages.SIZE")
	what := fmt.Sprintf("%s: node %s has no such key", key, n.Name)
	top, _, _ := strings.Cut(key, ".")
	switch list, entry, missing := entryOf(n, key); {
	case missing:
		what += ", and no " + list + " entry " + entry + ";"
	case meantKey(key, keys) != "":
		what += "; did you mean " + meantKey(key, keys) + "?"
	case isSpecKey(top) && !strings.Contains(strings.Join(keys, " "), top):
		what += " that changes live; change " + top + " in its spec, then berth apply -f FILE;"
	default:
		what += ";"
	}
	return fmt.Errorf("%s it has %s", what, strings.Join(keys, ", "))
}

// meantKey returns the key nearest to key. If key has a group (memory. in memory.mxa), it looks only within the group.
func meantKey(key string, keys []string) string {
	group := key[:strings.LastIndexByte(key, '.')+1]
	var ends []string
	for _, k := range keys {
		if end, ok := strings.CutPrefix(k, group); ok {
			ends = append(ends, end)
		}
	}
	if group == "" || len(ends) == 0 {
		return suggest.To(key, keys)
	}
	if meant := suggest.To(key[len(group):], ends); meant != "" {
		return group + meant
	}
	return ""
}

// isSpecKey reports whether a spec has key at its top level.
func isSpecKey(key string) bool {
	for f := range reflect.TypeFor[Node]().Fields() {
		if FieldKey(f) == key {
			return true
		}
	}
	return false
}

// entryOf returns the list and entry of an io or net key: io and disk of io.disk.weight. missing is true if the node
// has no such entry.
func entryOf(n *Node, key string) (list, entry string, missing bool) {
	list, rest, _ := strings.Cut(key, ".")
	entry, _, dotted := strings.Cut(rest, ".")
	if !dotted || list != "io" && list != "net" {
		return "", "", false
	}
	for _, k := range Settable(n) {
		if strings.HasPrefix(k, list+"."+entry+".") {
			return "", "", false
		}
	}
	return list, entry, true
}
