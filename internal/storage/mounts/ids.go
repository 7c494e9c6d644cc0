package mounts

import "syscall"

// IDs is a node's map of ids. The zero value means no user namespace.
//
// Root inside is Base on the host, as user and as group. Without UIDs and GIDs, ids 0..Size-1 map to Base..Base+Size-1. With them,
// each says all of its map.
type IDs struct {
	Base uint32   `json:"base,omitempty"`
	Size uint32   `json:"size,omitempty"`
	UIDs []IDLine `json:"uids,omitempty"`
	GIDs []IDLine `json:"gids,omitempty"`
}

// IDLine is one line of a map of ids (user_namespaces(7)): the Count ids from Inside are those from Host.
type IDLine struct {
	Inside uint32 `json:"inside"`
	Host   uint32 `json:"host"`
	Count  uint32 `json:"count"`
}

// None reports whether there is no map, so that ids are those of the host.
func (i IDs) None() bool { return i.Size == 0 }

// Users returns the lines of the map of user ids.
func (i IDs) Users() []IDLine { return i.lines(i.UIDs) }

// Groups returns the lines of the map of group ids.
func (i IDs) Groups() []IDLine { return i.lines(i.GIDs) }

func (i IDs) lines(own []IDLine) []IDLine {
	if len(own) == 0 && !i.None() {
		return []IDLine{{Host: i.Base, Count: i.Size}}
	}
	return own
}

// User returns the host's id of a user of the node; ok is false if the node has no such user.
func (i IDs) User(inside uint32) (host uint32, ok bool) {
	if i.None() {
		return inside, true
	}
	for _, l := range i.Users() {
		if inside >= l.Inside && inside-l.Inside < l.Count {
			return l.Host + inside - l.Inside, true
		}
	}
	return 0, false
}

// Attr makes a new process the root of a new user namespace with this map. Without a map it changes nothing.
func (i IDs) Attr(a *syscall.SysProcAttr) {
	if i.None() {
		return
	}
	a.Cloneflags |= syscall.CLONE_NEWUSER
	a.UidMappings, a.GidMappings, a.GidMappingsEnableSetgroups = sysLines(i.Users()), sysLines(i.Groups()), true
	a.Credential = &syscall.Credential{}
}

func sysLines(lines []IDLine) []syscall.SysProcIDMap {
	var all []syscall.SysProcIDMap
	for _, l := range lines {
		all = append(all, syscall.SysProcIDMap{ContainerID: int(l.Inside), HostID: int(l.Host), Size: int(l.Count)})
	}
	return all
}
