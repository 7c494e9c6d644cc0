package machine

import (
	"context"
	"errors"
	"os"

	"berth/internal/host"
	"berth/internal/sys/refuse"
)

// Check tells whether this host runs machines, and how.
func Check(ctx context.Context) host.Check {
	c := host.Check{Area: "virtual machines", Name: "emulator", State: host.OK, Why: "nodes of kind machine have a kernel of their own"}
	f, err := look()
	if err == nil {
		f.Version, err = version(ctx, f.Path)
	}
	if err != nil {
		c.State, c.Found = host.Lacks, err.Error()
		if r, ok := errors.AsType[*refuse.Error](err); ok {
			c.Found, c.Remedy = r.What, r.Remedy
		}
		return c
	}
	c.Found = "QEMU " + f.Version + ", with an emulated CPU"
	if d, err := FindShareDaemon(); err == nil {
		c.Found += "; mounts by " + d.String()
	} else {
		c.Found += "; " + err.Error()
	}
	if _, err := os.Stat("/dev/kvm"); err == nil {
		c.Found += "; this version of Berth does not use /dev/kvm"
	}
	return c
}
