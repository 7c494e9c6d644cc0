package vnode

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// ParseRemote splits HOST:/PATH, the source of a mount from a file server. HOST is a name or an IPv4 address, or an IPv6
// address in square brackets.
func ParseRemote(source string) (host, path string, err error) {
	i := strings.Index(source, ":/")
	if strings.HasPrefix(source, "[") {
		if i = strings.Index(source, "]:/"); i >= 0 {
			i++
		}
	}
	if i <= 0 {
		return "", "", fmt.Errorf("%q is not HOST:/PATH", source)
	}
	host, path = source[:i], source[i+1:]
	if inner, ok := strings.CutPrefix(host, "["); ok {
		addr, err := netip.ParseAddr(strings.TrimSuffix(inner, "]"))
		if err != nil || !addr.Is6() || addr.Zone() != "" && !isOption(addr.Zone()) {
			return "", "", fmt.Errorf("%q is not HOST:/PATH: %q is not an IPv6 address in square brackets", source, host)
		}
		return addr.String(), path, nil
	}
	if !isHostname(host) {
		return "", "", fmt.Errorf("%q is not HOST:/PATH: %q is not a host name or an address (IPv6 in square brackets)", source, host)
	}
	return host, path, nil
}

func checkMounts(r *report, n *Node) {
	for i, m := range n.Mounts {
		at := fmt.Sprintf("mounts[%d]", i)
		checkSource(r, at+".source", &m)
		if !OwnView(m.Target) {
			checkTarget(r, at+".target", m.Target)
		} else if !m.ReadOnly || m.Map != Identity {
			r.bad(at+".target", "%q can only be mounted with read_only: true and map: identity", m.Target)
		}
		checkGatewayKeys(r, at, &m)
		checkOptions(r, at, &m)
		checkMap(r, at, &m)
		checkVia(r, at, &m, n)
		checkOneUser(r, at, &m, n)
		checkBeneath(r, at, &m, n)
	}
}

// OwnView reports whether a target is one of the files in which the kernel shows a node the host's memory, CPUs and load. LXCFS has
// files with the node's share to mount over them. Nothing reads these files to decide on rights.
func OwnView(target string) bool {
	switch target {
	case "/proc/cpuinfo", "/proc/diskstats", "/proc/loadavg", "/proc/meminfo", "/proc/stat", "/proc/swaps", "/proc/uptime":
		return true
	}
	return false
}

func checkSource(r *report, field string, m *Mount) {
	if !m.Remote() {
		if _, _, err := ParseRemote(m.Source); err == nil {
			r.badIf([]string{strings.TrimSuffix(field, "source") + "gateway"}, field, "%q is on a file server: gateway %s takes a path on this host", m.Source, m.Gateway)
			return
		}
		checkPath(r, field, m.Source)
		return
	}
	if m.Source == "" {
		r.bad(field, "missing: HOST:/PATH of a file server")
		return
	}
	_, path, err := ParseRemote(m.Source)
	if err != nil {
		r.bad(field, "%s", err)
		return
	}
	checkPath(r, field, path)
}

// checkGatewayKeys refuses keys that the mount's gateway does not have.
func checkGatewayKeys(r *report, at string, m *Mount) {
	rests := []string{at + ".gateway"}
	if m.Via != "" && !m.Remote() {
		r.badIf(rests, at+".via", "not possible with gateway %s: it uses no network", m.Gateway)
	}
	if m.NosuidSource && m.Remote() {
		r.badIf(rests, at+".nosuid_source", "not possible with gateway %s: the source is not on this host", m.Gateway)
	}
	if !m.Remote() && len(m.Options) > 0 {
		r.badIf(rests, at+".options", "not possible with gateway %s: it has no options", m.Gateway)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Options)) {
		field := at + ".options." + name
		switch value := m.Options[name]; {
		case !isOption(name):
			r.bad(field, "%q is not the name of an option: letters, digits, '-', '_' and '.'", name)
		case value == "":
			r.bad(field, "empty: an option that is only switched on has the value true")
		case strings.ContainsRune(value, ','):
			r.bad(field, "%q holds a comma, which separates options", value)
		}
	}
}

func isOption(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !strings.ContainsRune("-_.", c)
	})
}
