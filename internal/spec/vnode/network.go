package vnode

import (
	"slices"
	"strings"
)

// ParseNetwork reads a connection as flags say it: MODE:PARENT,ADDRESS,… It checks nothing: Validate does.
func ParseNetwork(s string) Network {
	how, addr, _ := strings.Cut(s, ",")
	mode, parent, _ := strings.Cut(how, ":")
	nw := Network{Mode: Mode(mode), Parent: parent}
	if addr != "" {
		nw.Address = strings.Split(addr, ",")
	}
	nw.Address = slices.DeleteFunc(nw.Address, func(a string) bool {
		nw.DHCP = nw.DHCP || a == "dhcp"
		return a == "dhcp"
	})
	return nw
}
