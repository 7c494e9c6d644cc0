package vnode

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Setting is one limit of a node by its key, as in "berth set NAME KEY=VALUE".
type Setting struct {
	Key   string // "io.data.read.rate"
	Value string // "100MB/s"
}

// Max is the value that clears a limit.
const Max = "max"

// Keys returns the limits that a node's spec sets, in the order of the types. It is the inverse of Change.
func Keys(n *Node) []Setting {
	var list []Setting
	for _, l := range limits(n) {
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
	for _, l := range limits(n) {
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
	for _, l := range limits(n) {
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
	pages := maps.Clone(n.HugePages)
	if value == Max {
		delete(pages, size)
		if len(pages) == 0 {
			pages = nil
		}
		n.HugePages = pages
		return nil
	}
	limit, err := ParseBytes(value)
	if err != nil {
		return fmt.Errorf("%s: %w, or %s for no limit", key, err, Max)
	}
	if pages == nil {
		pages = HugePages{}
	}
	pages[size] = limit
	n.HugePages = pages
	return nil
}

// limit is one limit of a node that can change while the node runs.
type limit struct {
	key  string
	text string             // current value; "" if not set
	set  func(string) error // "" clears
}

// limits returns every limit that a node can have, set or not, in the order of the types. Of huge pages and resource
// limits it returns only those that are set.
func limits(n *Node) []limit {
	list := []limit{
		numberLimit("cpu.weight", &n.CPU.Weight, CPU{}, "Weight"),
		unitLimit("cpu.max", &n.CPU.Max, ParseCores),
		unitLimit("cpu.set", &n.CPU.Set, ParseCPUSet),
		numaLimit(&n.CPU.NUMA),
		unitLimit("memory.max", &n.Memory.Max, parseLimitBytes),
		unitLimit("memory.high", &n.Memory.High, parseLimitBytes),
		unitLimit("memory.low", &n.Memory.Low, parseLimitBytes),
		unitLimit("memory.min", &n.Memory.Min, parseLimitBytes),
		swapLimit(&n.Memory.Swap),
	}
	for _, size := range slices.Sorted(maps.Keys(n.HugePages)) {
		list = append(list, limit{key: "hugepages." + size.String(), text: n.HugePages[size].String()})
	}
	list = append(list, numberLimit("pids", &n.PIDs, Node{}, "PIDs"), restartPolicy(&n.Restart))
	for _, name := range slices.Sorted(maps.Keys(n.RLimits)) {
		list = append(list, limit{key: "rlimits." + name, text: strconv.FormatUint(n.RLimits[name], 10)})
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
	return list
}

// unitLimit returns a limit whose type formats itself and whose zero value means not set.
func unitLimit[T comparable](key string, p *T, parse func(string) (T, error)) limit {
	var zero T
	text := ""
	if *p != zero {
		text = fmt.Sprint(*p)
	}
	return limit{key, text, func(s string) error {
		v := zero
		if s != "" {
			var err error
			if v, err = parse(s); err != nil {
				return fmt.Errorf("%w, or %s for no limit", err, Max)
			}
		}
		*p = v
		return nil
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
func numberLimit(key string, p *int, owner any, field string) limit {
	f, _ := reflect.TypeOf(owner).FieldByName(field)
	low, high, _ := Range(f.Tag)
	text := ""
	if *p != 0 {
		text = strconv.Itoa(*p)
	}
	return limit{key, text, func(s string) error {
		if s == "" {
			*p = 0
			return nil
		}
		v, err := parseNumber(s, low, high)
		if err == nil {
			*p = v
		}
		return err
	}}
}

func parseNumber(s string, low, high int64) (int, error) {
	v, err := strconv.Atoi(s)
	if err != nil || !isDigits(s) || int64(v) < low || int64(v) > high {
		return 0, fmt.Errorf("%q is not allowed: a whole number %d to %d, or %s for no limit", s, low, high, Max)
	}
	return v, nil
}

func numaLimit(p **int) limit {
	f, _ := reflect.TypeFor[CPU]().FieldByName("NUMA")
	low, high, _ := Range(f.Tag)
	text := ""
	if *p != nil {
		text = strconv.Itoa(**p)
	}
	return limit{"cpu.numa", text, func(s string) error {
		if s == "" {
			*p = nil
			return nil
		}
		v, err := parseNumber(s, low, high)
		if err == nil {
			*p = &v
		}
		return err
	}}
}

func swapLimit(p **Bytes) limit {
	text := ""
	if *p != nil {
		text = (*p).String()
	}
	return limit{"memory.swap", text, func(s string) error {
		if s == "" {
			*p = nil
			return nil
		}
		v, err := ParseBytes(s)
		if err != nil {
			return fmt.Errorf("%w, or %s for no limit", err, Max)
		}
		*p = &v
		return nil
	}}
}
