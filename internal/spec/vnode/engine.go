package vnode

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ModelKeys returns the numbers of a disk's cost model, in the kernel's order (Documentation/admin-guide/cgroup-v2.rst,
// io.cost.model): for reads, then for writes, the bytes per second and the 4 KiB operations per second, sequential and
// random.
func ModelKeys() []string {
	return []string{"rbps", "rseqiops", "rrandiops", "wbps", "wseqiops", "wrandiops"}
}

// ParseModel reads a cost model and returns it with its keys in the kernel's order. Each key must be given once, as a
// whole number above 0.
func ParseModel(s string) (string, error) {
	given := map[string]string{}
	for word := range strings.FieldsSeq(s) {
		key, value, ok := strings.Cut(word, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		switch {
		case !ok || !slices.Contains(ModelKeys(), key):
			return "", fmt.Errorf("%q is not a part of a model: %s=N", word, strings.Join(ModelKeys(), "=N, "))
		case err != nil || n < 1:
			return "", fmt.Errorf("%q is not allowed: %s is a whole number above 0", word, key)
		case given[key] != "":
			return "", fmt.Errorf("%s is given twice", key)
		}
		given[key] = value
	}
	words := make([]string, 0, len(given))
	for _, key := range ModelKeys() {
		if given[key] == "" {
			return "", fmt.Errorf("%s is missing: berth doctor --calibrate DEVICE prints a model", key)
		}
		words = append(words, key+"="+given[key])
	}
	return strings.Join(words, " "), nil
}

// checkEngines checks that an entry's engine and model fit its other keys.
func checkEngines(r *report, n *Node) {
	for i, e := range n.IO {
		at := fmt.Sprintf("io[%d]", i)
		if e.Engine != "" && e.Filesystem != "" {
			r.badIf([]string{at + ".filesystem"}, at+".engine", "not possible with filesystem: an engine works on a disk of this host")
		}
		if e.Model == "" {
			continue
		}
		if e.Engine != IOCost {
			r.badIf([]string{at + ".engine"}, at+".model", "only with engine: iocost")
		} else if _, err := ParseModel(e.Model); err != nil {
			r.bad(at+".model", "%s", err)
		}
	}
}
