// Command undevice does to a cgroup's device program what another program may do: undevice GROUP takes the last one off, undevice GROUP all puts
// one in its place that allows all devices, undevice GROUP more puts such a one beside it. GROUP is the group's folder.
package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"berth/internal/sys/bpf"
)

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// attachment is the part of union bpf_attr for BPF_PROG_ATTACH and BPF_PROG_DETACH.
type attachment struct{ group, prog, kind, flags uint32 }

func run(dir string, how []string) error {
	group, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer group.Close()
	a := attachment{group: uint32(group.Fd()), kind: unix.BPF_CGROUP_DEVICE}
	if len(how) == 0 || how[0] == "all" {
		ids, err := bpf.Attached(group, unix.BPF_CGROUP_DEVICE)
		if err == nil && len(ids) == 0 {
			err = fmt.Errorf("%s has no device program", dir)
		}
		if err != nil {
			return err
		}
		prog, err := bpf.ByID(ids[len(ids)-1])
		if err != nil {
			return err
		}
		defer prog.Close()
		off := a
		off.prog = uint32(prog.Fd())
		if _, err := bpf.Call(unix.BPF_PROG_DETACH, &off); err != nil {
			return err
		}
	}
	if len(how) == 0 {
		return nil
	}
	const result = 0
	prog, err := bpf.Load(unix.BPF_PROG_TYPE_CGROUP_DEVICE, "other", []bpf.Instruction{bpf.Op(bpf.MoveValue, result, 0, 0, 1), bpf.Op(bpf.Exit, 0, 0, 0, 0)})
	if err != nil {
		return err
	}
	defer prog.Close()
	a.prog, a.flags = uint32(prog.Fd()), unix.BPF_F_ALLOW_MULTI
	_, err = bpf.Call(unix.BPF_PROG_ATTACH, &a)
	return err
}
