package want

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/spec/vnode"
)

// Filesystem is a shared file system that this host serves: an entry of berthd's file.
type Filesystem struct {
	Name      string   `json:"name" doc:"name of the file system in the site, as io entries of nodes give it"`
	Path      string   `json:"path" doc:"folder that is served; limits act on the disk under it"`
	Server    string   `json:"server" doc:"what serves it" allowed:"sftp|samba|xrootd|ganesha|hdfs|other"`
	Way       string   `json:"way,omitempty" doc:"how requests of nodes are told apart; if absent: what fits the server" allowed:"launch|preload|gate|network|instances"`
	Interface string   `json:"interface,omitempty" doc:"way network: the interface at which nodes reach the server"`
	Port      int      `json:"port,omitempty" range:"1..65535" doc:"ways gate and instances: the TCP port at which the server listens"`
	Capacity  Capacity `json:"capacity,omitzero" doc:"what this server can do for all nodes together: where they want more, class and weight decide"`
	User      string   `json:"user,omitempty" doc:"ways preload and instances: the user that the server runs as; if absent: root"`

	Command   []string `json:"command,omitempty" doc:"way instances: program and arguments of a node's own server, in which {node}, {port} (at which it must listen) and {dir} (its folder) are replaced"`
	Namespace string   `json:"namespace,omitempty" doc:"way instances: file of the server's network namespace, as /run/netns/NAME; if absent: berthd's"`
}

// Capacity is the I/O that a server can do in a second. A rate of 0 is not known.
type Capacity struct {
	Read  vnode.IORate `json:"read,omitzero" doc:"reads of all nodes"`
	Write vnode.IORate `json:"write,omitzero" doc:"writes of all nodes"`
}

// The ways in which a file server's work for a node gets into the node's group.
const (
	Launch    = "launch"    // the process that serves a client begins in the group
	Preload   = "preload"   // each thread inserts itself when it receives a request
	Gate      = "gate"      // the process that serves a client is stopped at its first receive, put into the group, and continued
	Network   = "network"   // the node is in no group: the frames between it and the server are limited
	Instances = "instances" // the node has a server of its own, which begins in the group: new connections of the node go there
)

// ways maps each kind of server to the ways that it can be served by; the first is the default.
func ways(server string) []string {
	return map[string][]string{
		"sftp": {Launch, Network}, "samba": {Launch, Gate, Network}, "xrootd": {Preload, Network, Instances}, "ganesha": {Preload, Network, Instances},
		"hdfs": {Preload, Network}, "other": {Network, Gate, Instances},
	}[server]
}

// Check returns the mistakes in the file systems of an agent's file.
func Check(all []Filesystem, bad func(field, format string, a ...any)) {
	names, interfaces, ports := map[string]bool{}, map[string]bool{}, map[int]bool{}
	for i, f := range all {
		at := fmt.Sprintf("filesystems[%d]", i)
		switch {
		case f.Name == "":
			bad(at, "name is missing")
		case vnode.CheckName(f.Name) != nil: // as nodes are called
			bad(at+".name", "%v", vnode.CheckName(f.Name))
		case f.Name == "tasks":
			bad(at+".name", "%q cannot be the name of a file system: cgroup v1 has a file of this name in each group, where its own would be", f.Name)
		case names[f.Name]:
			bad(at+".name", "%q is there twice", f.Name)
		}
		names[f.Name] = true
		if !filepath.IsAbs(f.Path) || filepath.Clean(f.Path) != f.Path {
			bad(at+".path", "%q is no path from the root of the file system", f.Path)
		}
		can := ways(f.Server)
		if can == nil {
			bad(at+".server", "%q is not allowed: sftp, samba, xrootd, ganesha, hdfs or other", f.Server)
			continue
		}
		if f.Way != "" && !strings.Contains(" "+strings.Join(can, " ")+" ", " "+f.Way+" ") {
			bad(at+".way", "%q is not allowed for server %s: %s", f.Way, f.Server, strings.Join(can, " or "))
		}
		if f.User != "" && f.WayOf() != Preload && f.WayOf() != Instances {
			bad(at+".user", "only with way: preload or instances")
		}
		switch {
		case f.WayOf() == Network && f.Interface == "":
			bad(at+".interface", "is missing: way network limits the frames there")
		case f.WayOf() != Network && f.Interface != "":
			bad(at+".interface", "only with way: network")
		case f.Interface != "" && interfaces[f.Interface]:
			bad(at+".interface", "another file system has %s: its frames would count for both", f.Interface)
		}
		interfaces[f.Interface] = true
		switch {
		case f.WayOf() == Gate && f.Port == 0:
			bad(at+".port", "is missing: way gate knows the server by the port at which it listens")
		case f.Port < 0 || f.Port > 65535:
			bad(at+".port", "%d is no port: 1 to 65535", f.Port)
		case f.WayOf() != Gate && f.WayOf() != Instances && f.Port != 0:
			bad(at+".port", "only with way: gate or instances")
		case f.WayOf() == Gate && ports[f.Port]:
			bad(at+".port", "another file system has %d: a process cannot be in the groups of both", f.Port)
		}
		ports[f.Port] = ports[f.Port] || f.WayOf() == Gate
		checkInstances(f, all[:i], func(field, format string, a ...any) { bad(at+field, format, a...) })
	}
}

// checkInstances returns the mistakes in the settings of way instances; before are the file systems above this one in the file.
func checkInstances(f Filesystem, before []Filesystem, bad func(field, format string, a ...any)) {
	if f.WayOf() != Instances {
		for field, has := range map[string]bool{".command": f.Command != nil, ".namespace": f.Namespace != ""} {
			if has {
				bad(field, "only with way: instances")
			}
		}
		return
	}
	switch {
	case f.Port == 0:
		bad("", "port is missing: way instances steers the connections to it")
	case slices.ContainsFunc(before, func(b Filesystem) bool {
		return b.WayOf() == Instances && b.Port == f.Port && b.Namespace == f.Namespace
	}):
		bad(".port", "another file system has port %d: a connection goes to one server", f.Port)
	}
	switch {
	case len(f.Command) == 0:
		bad("", "command is missing: way instances starts a server for each node")
	case !filepath.IsAbs(f.Command[0]):
		bad(".command", "%q is no path from the root of the file system", f.Command[0])
	}
	if f.Namespace != "" && !filepath.IsAbs(f.Namespace) {
		bad(".namespace", "%q is no path from the root of the file system", f.Namespace)
	}
}

// WayOf returns the way, also where it is left out.
func (f Filesystem) WayOf() string {
	if can := ways(f.Server); f.Way == "" && len(can) > 0 {
		return can[0]
	}
	return f.Way
}
