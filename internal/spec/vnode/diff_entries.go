package vnode

import (
	"strings"
)

// ByEntry merges the differences of an entry that was added or removed as a whole (a mount, an interface, a device, a
// disk) into one, for display. Its key is the entry's key. Its value lists the entry's settings other than defaults.
func ByEntry(diffs []Difference) []Difference {
	var all []Difference
	at := map[string]int{} // index in all of an entry that was added or removed
	for _, d := range diffs {
		entry, _ := entryKey(d.Key)
		if i, ok := at[entry]; ok && entry != "" {
			all[i].Live = all[i].Live && d.Live
			continue
		}
		if entry == "" || !isWhole(diffs, entry) {
			all = append(all, d)
			continue
		}
		at[entry] = len(all)
		all = append(all, Difference{
			Key: entry, Live: d.Live,
			Old: summary(diffs, entry, func(d Difference) string { return d.Old }),
			New: summary(diffs, entry, func(d Difference) string { return d.New }),
		})
	}
	return all
}

// entryKey splits the key of a difference into the key of its list entry and the field within it. Both are "" if the
// key belongs to no entry.
func entryKey(key string) (entry, field string) {
	group, rest, _ := strings.Cut(key, ".")
	i := -1
	switch group {
	case "io", "net": // entry names have no dots, fields may
		i = strings.IndexByte(rest, '.')
	case "mounts", "devices", "scratch", "tmpfs": // paths may have dots, fields have none
		i = strings.LastIndexByte(rest, '.')
	}
	if i < 0 {
		return "", ""
	}
	return group + "." + rest[:i], rest[i+1:]
}

// isWhole reports whether an entry was added or removed: then a field that every such entry has is among the
// differences.
func isWhole(diffs []Difference, entry string) bool {
	group, _, _ := strings.Cut(entry, ".")
	always := map[string]string{"io": "name", "net": "mode", "mounts": "target", "devices": "path", "scratch": "target", "tmpfs": "target"}[group]
	for _, d := range diffs {
		if e, field := entryKey(d.Key); e == entry && field == always {
			return d.Old == "" || d.New == ""
		}
	}
	return false
}

// summary returns the settings of an entry, without its name and the defaults; "" if the entry is not there.
func summary(diffs []Difference, entry string, value func(Difference) string) string {
	group, _, _ := strings.Cut(entry, ".")
	var words []string
	there := false
	for _, d := range diffs {
		e, field := entryKey(d.Key)
		v := value(d)
		if e != entry || v == "" {
			continue
		}
		there = true
		switch group + "." + field {
		case "io.name", "net.name", "mounts.target", "devices.path", "scratch.target", "tmpfs.target": // already in the entry's key
		case "net.mode", "mounts.source":
			words = append([]string{v}, words...)
		case "io.device", "io.path", "io.filesystem", "scratch.size", "tmpfs.size":
			words = append(words, v)
		case "mounts.read_only":
			words = append(words, "read-only")
		default:
			if v != defaultOf(group, field) {
				words = append(words, field+" "+v)
			}
		}
	}
	switch {
	case !there:
		return ""
	case len(words) == 0:
		return "given"
	}
	return strings.Join(words, ", ")
}

// defaultOf returns the value that Defaults gives a field that is not set.
func defaultOf(group, field string) string {
	return map[string]string{
		"net.mac": AutoMAC, "mounts.gateway": defaultGateway, "mounts.map": defaultMap, "mounts.via": defaultVia, "devices.access": defaultAccess,
	}[group+"."+field]
}
