package gateway

import (
	"errors"

	"berth/internal/host"
	"berth/internal/storage/mounts"
	"berth/internal/sys/refuse"
)

// Checks are the checks of berth doctor: whether this host has what the gateways to file servers need. serves says why it cannot be a
// server of sshfs-direct; nil: it can.
func Checks(serves error) []host.Check {
	check := func(name string, lacks error, why string) host.Check {
		c := host.Check{Area: "file servers", Name: name, State: host.OK, Found: "all that it needs", Why: why}
		if lacks != nil {
			c.State, c.Found = host.Lacks, lacks.Error()
			if r, ok := errors.AsType[*refuse.Error](lacks); ok {
				c.Found, c.Remedy = r.What, r.Remedy
			}
		}
		return c
	}
	return []host.Check{
		check("gateway nfs", canNFS("/"), "mounts of an NFS server, in nodes"),
		check("gateway sshfs", SSHFS{}.can(), "mounts of a server with sshd, in nodes"),
		check("gateway sshfs-direct", SSHFS{Direct: true}.can(), "mounts of a server that runs berth gateway serve, in nodes"),
		check("gateway serve", serves, "this host serves folders to nodes of other hosts"),
	}
}

// CanIdmap checks whether the file system of a folder can be idmapped, as bind does it with the host's ids.
func CanIdmap(dir string) error { return mounts.CanIdmap(dir, false) }
