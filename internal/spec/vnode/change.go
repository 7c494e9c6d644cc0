package vnode

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Limits returns the limits that a node's spec sets, in the order of the types. It is the inverse of Change.
func Limits(n *Node) []Setting {
	var list []Setting
	for _, l := range liveKeys(n) {
		if l.text != "" {
			list = append(list, Setting{l.key, l.text})
		}
	}
	return list
}

// Change sets one limit of a node, or clears it if value is Max (for a weight also "default"). It checks this value
// alone: after the last change the caller calls Validate to check them together. On error n is unchanged; the error
// says what is allowed.
func Change(n *Node, key, value string) error {
	if size, ok := strings.CutPrefix(key, "hugepages."); ok {
		return changeHugePages(n, size, value)
	}
	if name, ok := strings.CutPrefix(key, "rlimits."); ok {
		return changeRLimit(n, name, value)
	}
	if key == AddDevice || key == TakeDevice {
		return changeDevices(n, key, value)
	}
	for _, l := range liveKeys(n) {
		if l.key != key {
			continue
		}
		switch {
		case value == Max, value == "default" && strings.HasSuffix(key, ".weight"):
			value = ""
		case value == "":
			return fmt.Errorf("%s: no value: give one, or %s for no limit", key, Max)
		}
		if err := l.set(value); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return nil
	}
	return unknownKey(n, key)
}

// Settable returns the keys that Change takes for a node, except for huge pages and resource limits that the node does
// not have yet.
func Settable(n *Node) []string {
	var keys []string
	for _, l := range liveKeys(n) {
		keys = append(keys, l.key)
	}
	return keys
}

func changeHugePages(n *Node, sizeText, value string) error {
	key := "hugepages." + sizeText
	size, err := ParseBytes(sizeText)
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	if value == Max {
		n.HugePages = withoutEntry(n.HugePages, size)
		return nil
	}
	limit, err := ParseBytes(value)
	if err != nil {
		return fmt.Errorf("%s: %w, or %s for no limit", key, err, Max)
	}
	n.HugePages = withEntry(n.HugePages, size, limit)
	return nil
}

// withEntry returns a copy of a map with one entry set.
func withEntry[M ~map[K]V, K comparable, V any](m M, key K, value V) M {
	c := maps.Clone(m)
	if c == nil {
		c = M{}
	}
	c[key] = value
	return c
}

// withoutEntry returns a copy of a map without one entry; nil if no entry is left.
func withoutEntry[M ~map[K]V, K comparable, V any](m M, key K) M {
	c := maps.Clone(m)
	delete(c, key)
	if len(c) == 0 {
		return nil
	}
	return c
}

// liveKey is one key of a spec that can change while the node runs: a limit, restart or stop.grace.
type liveKey struct {
	key  string
	text string             // current value; "" if not set
	set  func(string) error // "" clears
}

// liveKeys returns every such key that a node can have, set or not; of huge pages and resource limits, only those that are set.
func liveKeys(n *Node) []liveKey {
	list := []liveKey{
		numberLimit("cpu.weight", &n.CPU.Weight, CPU{}, "Weight"),
		unitLimit("cpu.max", &n.CPU.Max, ParseCores),
		unitLimit("cpu.set", &n.CPU.Set, ParseCPUSet),
		pointerLimit("cpu.numa", &n.CPU.NUMA, parseNUMA),
		unitLimit("memory.max", &n.Memory.Max, parseLimitBytes),
		unitLimit("memory.high", &n.Memory.High, parseLimitBytes),
		unitLimit("memory.low", &n.Memory.Low, parseLimitBytes),
		unitLimit("memory.min", &n.Memory.Min, parseLimitBytes),
		pointerLimit("memory.swap", &n.Memory.Swap, orMax(ParseBytes, "no limit")),
	}
	for _, size := range slices.Sorted(maps.Keys(n.HugePages)) {
		list = append(list, liveKey{key: "hugepages." + size.String(), text: n.HugePages[size].String()})
	}
	list = append(list, numberLimit("pids", &n.PIDs, Node{}, "PIDs"), restartPolicy(&n.Restart), pointerLimit("stop.grace", &n.Stop.Grace, orMax(ParseDuration, "the default")))
	for _, name := range slices.Sorted(maps.Keys(n.RLimits)) {
		list = append(list, liveKey{key: "rlimits." + name, text: strconv.FormatUint(n.RLimits[name], 10)})
	}
	for i := range n.IO {
		e := &n.IO[i]
		at := "io." + e.Name
		list = append(
			list,
			numberLimit(at+".weight", &e.Weight, IO{}, "Weight"),
			unitLimit(at+".read.rate", &e.Read.Rate, ParseRate),
			numberLimit(at+".read.iops", &e.Read.IOPS, IORate{}, "IOPS"),
			unitLimit(at+".write.rate", &e.Write.Rate, ParseRate),
			numberLimit(at+".write.iops", &e.Write.IOPS, IORate{}, "IOPS"),
		)
	}
	for i, w := range withDefaults(n).Network {
		if w.Mode == None {
			continue
		}
		rate := &n.Network[i].Rate
		list = append(
			list,
			unitLimit("net."+w.Name+".tx", &rate.TX, ParseBitRate),
			unitLimit("net."+w.Name+".rx", &rate.RX, ParseBitRate),
		)
	}
	if n.IsMachine() {
		list = append(list, machineMemory(&n.Machine.Memory))
	}
	return list
}

// unitLimit returns a limit whose type formats itself and whose zero value means not set.
func unitLimit[T comparable](key string, p *T, parse func(string) (T, error)) liveKey {
	var zero T
	text := ""
	if *p != zero {
		text = fmt.Sprint(*p)
	}
	return liveKey{key, text, func(s string) (err error) {
		v := zero
		if s != "" {
			v, err = orMax(parse, "no limit")(s)
		}
		return setTo(p, v, err)
	}}
}

// setTo sets what p points to, unless there is an error, and returns that.
func setTo[T any](p *T, v T, err error) error {
	if err == nil {
		*p = v
	}
	return err
}

// orMax is parse with an error that says what Max means.
func orMax[T any](parse func(string) (T, error), means string) func(string) (T, error) {
	return func(s string) (T, error) {
		v, err := parse(s)
		if err != nil {
			err = fmt.Errorf("%w, or %s for %s", err, Max, means)
		}
		return v, err
	}
}

// machineMemory returns the key of what a machine's guest has as its memory, which cannot be cleared.
func machineMemory(p *Bytes) liveKey {
	return liveKey{"machine.memory", p.String(), func(s string) error {
		v, err := ParseBytes(s)
		if s == "" || err == nil && v == 0 {
			err = fmt.Errorf("a machine has memory of its own: give a size, at least %s", Bytes(leastMachineMemory))
		}
		return setTo(p, v, err)
	}}
}

// parseLimitBytes parses a size and refuses 0, which in a Node means no limit.
func parseLimitBytes(s string) (Bytes, error) {
	b, err := ParseBytes(s)
	if err == nil && b == 0 {
		err = fmt.Errorf("%q is no limit: a size above 0, for example 4GiB", s)
	}
	return b, err
}

// numberLimit returns a limit that is a whole number within the range tag of the given field of owner.
func numberLimit(key string, p *int, owner any, field string) liveKey {
	f, _ := reflect.TypeOf(owner).FieldByName(field)
	low, high, _ := Range(f.Tag)
	text := ""
	if *p != 0 {
		text = strconv.Itoa(*p)
	}
	return liveKey{key, text, func(s string) (err error) {
		v := 0
		if s != "" {
			v, err = parseNumber(s, low, high)
		}
		return setTo(p, v, err)
	}}
}

func parseNumber(s string, low, high int64) (int, error) {
	v, err := strconv.Atoi(s)
	if err != nil || !isDigits(s) || int64(v) < low || int64(v) > high {
		return 0, fmt.Errorf("%q is not allowed: a whole number %d to %d, or %s for no limit", s, low, high, Max)
	}
	return v, nil
}

func parseNUMA(s string) (int, error) {
	f, _ := reflect.TypeFor[CPU]().FieldByName("NUMA")
	low, high, _ := Range(f.Tag)
	return parseNumber(s, low, high)
}

// pointerLimit returns a limit for which 0 is a value: a nil pointer means not set.
func pointerLimit[T any](key string, p **T, parse func(string) (T, error)) liveKey {
	text := ""
	if *p != nil {
		text = fmt.Sprint(**p)
	}
	return liveKey{key, text, func(s string) error {
		if s == "" {
			*p = nil
			return nil
		}
		v, err := parse(s)
		return setTo(p, &v, err)
	}}
}

// changeRLimit sets or clears one resource limit of the node's processes.
func changeRLimit(n *Node, name, value string) error {
	key := "rlimits." + name
	if !slices.Contains(RLimitNames(), name) {
		return fmt.Errorf("%s: unknown limit: %s", key, or(RLimitNames()))
	}
	if value == Max {
		n.RLimits = withoutEntry(n.RLimits, name)
		return nil
	}
	v, err := strconv.ParseUint(value, 10, 64)
	if err != nil || !isDigits(value) {
		return fmt.Errorf("%s: %q is not allowed: a whole number, or %s for what the host gives", key, value, Max)
	}
	n.RLimits = withEntry(n.RLimits, name, v)
	return nil
}

// restartPolicy returns the key restart, which is no limit but is changed like one.
func restartPolicy(p *Restart) liveKey {
	return liveKey{"restart", string(*p), func(s string) error {
		if s != "" && !slices.Contains([]Restart{Never, OnFailure, Always}, Restart(s)) {
			return fmt.Errorf("%q is not allowed: %s, %s or %s", s, Never, OnFailure, Always)
		}
		*p = Restart(s)
		return nil
	}}
}
