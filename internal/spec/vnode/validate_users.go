package vnode

import "fmt"

// Bounds of the kernel's map of ids (user_namespaces(7)): lines, and bytes in the one write that makes it.
const (
	mostIDLines = 340
	mostIDBytes = 4095
)

// ReservedIDs says why no node may share a range of the host's ids; "" if none of them is reserved on every host.
func ReservedIDs(r IDRange) string {
	for _, x := range []struct {
		ids  IDRange
		what string
	}{
		{IDRange{0, 100}, "the host's own system users and groups (shadow, disk)"},
		{IDRange{61184, 4336}, "systemd's for services with DynamicUser"},
		{IDRange{65534, 1}, "nobody's"},
		{IDRange{65535, 1}, "nobody's: programs take it for \"no id\""},
		{IDRange{FirstOwn, LastID + 1 - FirstOwn}, "Berth's, for the nodes' own ids and for helpers"},
	} {
		if r.Overlaps(x.ids) {
			return fmt.Sprintf("%s holds %s, and these ids are %s", r, x.ids, x.what)
		}
	}
	return ""
}

func checkUsers(r *report, n *Node) {
	wrong := false
	for i, e := range n.Users {
		wrong = !checkExtent(r, fmt.Sprintf("users[%d]", i), e) || wrong
	}
	if wrong {
		return
	}
	if len(n.Users) > 0 && !n.UserNS() {
		r.badIf([]string{"user_namespace"}, "users", "not possible with user_namespace: false: the node then has all ids of the host")
		return
	}
	for i, e := range n.Users {
		for j, o := range n.Users[:i] {
			if e.Range().Overlaps(o.Range()) && (e.Of == "" || o.Of == "" || e.Of == o.Of) {
				r.bad(fmt.Sprintf("users[%d]", i), "%s and users[%d], %s, have ids in common", e.Range(), j, o.Range())
				return
			}
		}
	}
	if n.NewPrivileges() {
		if field, why := n.SharesTooMuch(); why != "" {
			r.badIf([]string{"no_new_privileges"}, field, "%s", why)
		}
	}
	for _, gid := range []bool{false, true} {
		if own := ownIDs(n.Users, gid); own > MostOwnIDs {
			r.bad("users", "%d private ids: at most %d in all", own, MostOwnIDs)
			return
		}
		lines := IDLines(n.Users, gid)
		if bytes := idBytes(lines); len(lines) > mostIDLines || bytes > mostIDBytes {
			r.bad("users", "%d lines and %d bytes of the kernel's map of ids: it takes %d lines and %d bytes; join neighbours into one extent",
				len(lines), bytes, mostIDLines, mostIDBytes)
			return
		}
	}
}

// checkExtent checks an extent by itself. ok is false if something is missing or out of its range.
func checkExtent(r *report, at string, e IDExtent) (ok bool) {
	before := len(r.problems)
	if e.From == 0 {
		r.bad(at+".from", "missing: the first id, from 1 (root is always the node's own)")
	}
	if e.Count == 0 {
		r.bad(at+".count", "missing: how many ids, from 1")
	}
	if e.As == "" {
		r.bad(at+".as", "missing: same or private")
	}
	if e.From < 1 || e.Count < 1 || e.From > LastID || e.Count > LastID || len(r.problems) > before {
		return false
	}
	switch {
	case e.End() > LastID+1:
		r.bad(at+".count", "%d ids from %d: the last one may be %d", e.Count, e.From, LastID)
	case e.As == PrivateIDs && e.From < OwnIDs:
		r.bad(at+".from", "%d is the node's own already: 0 to %d are", e.From, OwnIDs-1)
	case e.As == SameIDs:
		if why := ReservedIDs(e.Range()); why != "" {
			r.bad(at+".from", "%s", why)
		}
	}
	return len(r.problems) == before
}

// End returns the id after the last one.
func (e IDExtent) End() int { return e.Range().End() }

// idBytes returns the length of the text that the runtime writes to uid_map.
func idBytes(lines []IDLine) (n int) {
	for _, l := range lines {
		host := l.Inside
		if !l.Same {
			host = FirstOwn // they all have as many digits
		}
		n += len(fmt.Sprintf("%d %d %d\n", l.Inside, host, l.Count))
	}
	return n
}

// SharesTooMuch says which extent gives a node whose user can become root more of the host than this user's own ids; both are
// empty if none does. Root inside is every user that is mapped: so it may be one user, and this user's groups.
func (n *Node) SharesTooMuch() (field, why string) {
	const rule = "a node whose user can become root (no_new_privileges: false, or an init system without no_new_privileges: true) " +
		"may share the ids of this user alone, for root inside is every user that is shared: "
	users := 0
	for i, e := range n.Users {
		if e.As != SameIDs {
			continue
		}
		if e.Count > 1 {
			return fmt.Sprintf("users[%d].count", i), rule + "count: 1"
		}
		if e.has(false) {
			users++
		}
		if users > 1 {
			return fmt.Sprintf("users[%d]", i), rule + "this is a second user; of a group give of: gid"
		}
	}
	return "", ""
}

// CheckAllowList returns what is wrong with an admin's list of ids that nodes may share.
func CheckAllowList(l *AllowList) []Problem {
	r := &report{check: "allow"}
	for i, a := range l.Allow {
		at := fmt.Sprintf("allow[%d]", i)
		switch {
		case a.From < 1:
			r.bad(at+".from", "missing: the first id, from 1 (the host's root is never shared)")
		case a.Count < 1:
			r.bad(at+".count", "missing: how many ids, from 1")
		case a.From > LastID || a.Count > LastID || a.End() > LastID+1:
			r.bad(at+".count", "%d ids from %d: the last one may be %d", a.Count, a.From, LastID)
		default:
			if why := ReservedIDs(a); why != "" {
				r.bad(at+".from", "%s", why)
			}
		}
	}
	return r.own()
}
