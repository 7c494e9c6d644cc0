package vnode

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Difference is one key in which two specs of a node differ.
type Difference struct {
	Key  string `json:"key"`           // "memory.max", "net.eth0.mode", "mounts./eos.source"
	Old  string `json:"old,omitempty"` // "" if the old spec does not set it
	New  string `json:"new,omitempty"` // "" if the new spec does not set it
	Live bool   `json:"live"`          // it can change while the node runs; else a restart is needed
}

// Diff returns every difference between two specs of a node, in the order of the types. A default counts as set, so
// writing it out is no difference. Neither is the order of io entries, named interfaces, devices and mounts.
//
// Live differences are the limits that Change can set (but not the removal of a resource limit), devices of a container, restart,
// stop.grace, labels, and autostart; a machine's memory, up to what it booted with.
func Diff(before, after *Node) []Difference {
	was, is := asked(before), asked(after)
	var diffs []Difference
	for _, s := range was {
		if v := is.textOf(s.Key); v != s.Value {
			// The value without a resource limit is known only when the processes start.
			live := isLive(after, s.Key) && (v != "" || !strings.HasPrefix(s.Key, "rlimits."))
			diffs = append(diffs, Difference{Key: s.Key, Old: s.Value, New: v, Live: live})
		}
	}
	for _, s := range is {
		if was.textOf(s.Key) == "" {
			diffs = append(diffs, Difference{Key: s.Key, New: s.Value, Live: isLive(after, s.Key)})
		}
	}
	return diffs
}

// isLive decides by the key, which for a limit is the key that Change takes.
func isLive(n *Node, key string) bool {
	group, rest, _ := strings.Cut(key, ".")
	if key == "stop.grace" || key == "machine.memory" {
		return true
	}
	if key == "cpu.idle" { // it moves the node to another cgroup
		return false
	}
	switch group {
	case "restart", "autostart", "labels", "rlimits", "cpu", "memory", "hugepages", "pids":
		return true
	case "devices":
		return !n.IsMachine()
	case "io":
		_, field, _ := strings.Cut(rest, ".")
		return field == "weight" || strings.HasPrefix(field, "read.") || strings.HasPrefix(field, "write.")
	case "net":
		return strings.HasSuffix(key, ".tx") || strings.HasSuffix(key, ".rx")
	}
	return false
}

type settings []Setting

func (l settings) textOf(key string) string {
	if i := slices.IndexFunc(l, func(s Setting) bool { return s.Key == key }); i >= 0 {
		return l[i].Value
	}
	return ""
}

// asked returns everything that a node asks for, by key: limits by the keys of Change, entries of lists by their names.
func asked(n *Node) settings {
	n = withDefaults(n)
	n.Hostname = n.Host()
	if n.Kind == "" {
		n.Kind = ContainerKind
	}
	if n.Restart == "" {
		n.Restart = Never
	}
	if n.Delta.In == "" {
		n.Delta.In = OnDisk
	}
	userns := n.UserNS()
	n.UserNamespace = &userns
	for i := range n.Network {
		n.Network[i].MAC = strings.ToLower(n.Network[i].MAC)
	}
	var list settings
	list.add("", reflect.ValueOf(n).Elem())
	return list
}

// add adds the settings in v below key. A zero value sets nothing.
func (l *settings) add(key string, v reflect.Value) {
	if v.IsZero() {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		*l = append(*l, Setting{key, fmt.Sprint(v.Elem().Interface())}) // set, even if it is 0 or false
	case reflect.Slice:
		l.addList(key, v)
	case reflect.Map:
		if options, ok := reflect.TypeAssert[Options](v); ok {
			*l = append(*l, Setting{key, options.String()})
			return
		}
		for _, k := range sortedKeys(v) {
			value := fmt.Sprint(v.MapIndex(k).Interface())
			if v.Type().Elem().Kind() == reflect.String { // "" is a value
				value = quoteIfNeeded(value)
			}
			*l = append(*l, Setting{join(key, fmt.Sprint(k.Interface())), value})
		}
	case reflect.Struct:
		if image, ok := reflect.TypeAssert[Image](v); ok {
			*l = append(*l, Setting{key, image.String()})
			return
		}
		for i := range v.NumField() {
			f := v.Type().Field(i)
			below := join(key, FieldKey(f))
			if f.Type == reflect.TypeFor[NetRate]() {
				below = key // net.eth0.tx, as in berth set
			}
			l.add(below, v.Field(i))
		}
	default:
		*l = append(*l, Setting{key, fmt.Sprint(v.Interface())})
	}
}

// addList adds the entries of a list by their names, and a list of plain values as one value.
func (l *settings) addList(key string, v reflect.Value) {
	var words []string
	for i := range v.Len() {
		switch e := v.Index(i).Interface().(type) {
		case IO:
			l.add("io."+e.Name, reflect.ValueOf(e))
		case Network:
			l.add("net."+e.Name, reflect.ValueOf(e))
		case Device:
			l.add("devices."+e.Path, reflect.ValueOf(e))
		case Mount:
			l.add("mounts."+e.Target, reflect.ValueOf(e))
		case Tmpfs:
			l.add("tmpfs."+e.Target, reflect.ValueOf(e))
		case Scratch:
			l.add("scratch."+e.Target, reflect.ValueOf(e))
		case IDExtent:
			words = append(words, e.String())
		case Route:
			words = append(words, e.To+" via "+e.Via)
		default:
			words = append(words, quoteIfNeeded(fmt.Sprint(e)))
		}
	}
	if len(words) > 0 {
		*l = append(*l, Setting{key, strings.Join(words, ", ")})
	}
}

func quoteIfNeeded(s string) string {
	if s == "" || strings.ContainsAny(s, ", \"") || strconv.Quote(s) != `"`+s+`"` {
		return strconv.Quote(s)
	}
	return s
}
