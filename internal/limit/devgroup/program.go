package devgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/sys/bpf"
)

// programName is the name of Berth's device programs in the kernel, as "bpftool prog" shows it.
const programName = "berth_devices"

// program returns a device program that allows what the rules say and nothing else. The kernel calls it for each open and
// mknod with a struct bpf_cgroup_dev_ctx: access and type, major, minor. It returns 1 to allow.
func program(rules []deviceRule) []bpf.Instruction {
	const result, ctx, kind, access, major, minor = 0, 1, 2, 3, 4, 5
	all := []bpf.Instruction{
		bpf.Op(bpf.LoadWord, kind, ctx, 0, 0),
		bpf.Op(bpf.Move, access, kind, 0, 0),
		bpf.Op(bpf.Shift, access, 0, 0, 16),
		bpf.Op(bpf.AndValue, kind, 0, 0, 0xffff),
		bpf.Op(bpf.LoadWord, major, ctx, 4, 0),
		bpf.Op(bpf.LoadWord, minor, ctx, 8, 0),
	}
	for _, r := range rules {
		wanted := int32(unix.BPF_DEVCG_DEV_CHAR)
		if r.block {
			wanted = unix.BPF_DEVCG_DEV_BLOCK
		}
		one := []bpf.Instruction{
			bpf.Op(bpf.Unless, kind, 0, 0, wanted),
			// The bits of access that are asked for and not allowed. They replace ctx, which is not needed any more.
			bpf.Op(bpf.Move, ctx, access, 0, 0),
			bpf.Op(bpf.AndValue, ctx, 0, 0, ^int32(r.access)),
			bpf.Op(bpf.Unless, ctx, 0, 0, 0),
			bpf.Op(bpf.Unless, major, 0, 0, int32(r.major)),
		}
		if !r.anyMinor {
			one = append(one, bpf.Op(bpf.Unless, minor, 0, 0, int32(r.minor)))
		}
		one = append(one, bpf.Op(bpf.MoveValue, result, 0, 0, 1), bpf.Op(bpf.Exit, 0, 0, 0, 0))
		for i := range one {
			if one[i].Code == bpf.Unless {
				one[i].Off = int16(len(one) - i - 1) // to the next rule
			}
		}
		all = append(all, one...)
	}
	return append(all, bpf.Op(bpf.MoveValue, result, 0, 0, 0), bpf.Op(bpf.Exit, 0, 0, 0, 0))
}

// attached opens the device programs attached to a group itself, not those of the groups above it.
func attached(group *os.File) ([]*os.File, error) {
	ids, err := bpf.Attached(group, unix.BPF_CGROUP_DEVICE)
	if err != nil {
		return nil, err
	}
	var all []*os.File
	for _, id := range ids {
		prog, err := bpf.ByID(id)
		if errors.Is(err, unix.ENOENT) {
			continue // replaced meanwhile
		}
		if err != nil {
			closeFiles(all)
			return nil, fmt.Errorf("open a device program of %s: %w", group.Name(), err)
		}
		all = append(all, prog)
	}
	return all, nil
}

func closeFiles(all []*os.File) {
	for _, f := range all {
		f.Close()
	}
}

// withPrograms calls f with a group, its device programs, and the program with these rules.
func withPrograms(dir string, rules []deviceRule, f func(group *os.File, now []*os.File, prog *os.File) error) error {
	group, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open the node's group: %w", err)
	}
	defer group.Close()
	now, err := attached(group)
	if err != nil {
		return err
	}
	defer closeFiles(now)
	prog, err := bpf.Load(unix.BPF_PROG_TYPE_CGROUP_DEVICE, programName, program(rules))
	if err != nil {
		return err
	}
	defer prog.Close()
	return f(group, now, prog)
}

// attachProgram makes one program with these rules the only device program of a group. The kernel runs all programs of a
// group, and what one of them denies is denied. So the program that is there, the runtime's or Berth's own, is replaced,
// which the kernel does in one step.
func attachProgram(dir string, rules []deviceRule) error {
	return withPrograms(dir, rules, attach)
}

func attach(group *os.File, now []*os.File, prog *os.File) error {
	attr := struct{ group, prog, kind, flags, replace uint32 }{
		group: uint32(group.Fd()), prog: uint32(prog.Fd()), kind: unix.BPF_CGROUP_DEVICE, flags: unix.BPF_F_ALLOW_MULTI,
	}
	switch len(now) {
	case 0:
	case 1:
		attr.flags |= unix.BPF_F_REPLACE
		attr.replace = uint32(now[0].Fd())
	default:
		return fmt.Errorf("group %s has %d device programs: somebody else attached one, and what it denies stays denied", group.Name(), len(now))
	}
	if _, err := bpf.Call(unix.BPF_PROG_ATTACH, &attr); err != nil {
		return fmt.Errorf("attach a device program to %s: %w", group.Name(), err)
	}
	return nil
}

// checkProgram returns an error if the group's only device program does not have exactly these rules.
func checkProgram(dir string, rules []deviceRule) error {
	return withPrograms(dir, rules, check)
}

// check compares hashes: the kernel does not return a program's instructions.
func check(group *os.File, now []*os.File, want *os.File) error {
	if len(now) != 1 {
		return fmt.Errorf("group %s has %d device programs, not Berth's alone", group.Name(), len(now))
	}
	is, err1 := bpf.InfoOf(now[0])
	should, err2 := bpf.InfoOf(want)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if is.Tag != should.Tag {
		return fmt.Errorf("the device program of %s (%q, tag %x) is not the one with tag %x", group.Name(), cString(is.Name[:]), is.Tag, should.Tag)
	}
	return nil
}

func cString(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return strings.ToValidUTF8(string(b), "?")
}
