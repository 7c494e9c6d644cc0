package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// programName is how Berth's device programs are called in the kernel: "bpftool prog" shows it.
const programName = "berth_devices"

// instruction is one instruction of BPF (struct bpf_insn). regs holds the destination in its low half, as little-endian
// machines have it.
type instruction struct {
	code, regs uint8
	off        int16
	imm        int32
}

// The instructions that a device program is made of (include/uapi/linux/bpf.h).
const (
	opLoadWord  = unix.BPF_LDX | unix.BPF_W | unix.BPF_MEM
	opMove      = unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_X
	opMoveValue = unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_K
	opAndValue  = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K // of 32 bits
	opShift     = unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K
	opUnless    = unix.BPF_JMP | unix.BPF_JNE | unix.BPF_K
	opExit      = unix.BPF_JMP | unix.BPF_EXIT
)

// program is the device program that lets through what the rules say and nothing else. The kernel calls it for each
// open and mknod with a struct bpf_cgroup_dev_ctx: access and type, major, minor; it returns 1 for yes.
func program(rules []deviceRule) []instruction {
	const result, ctx, kind, access, major, minor = 0, 1, 2, 3, 4, 5
	all := []instruction{
		{opLoadWord, kind | ctx<<4, 0, 0},
		{opMove, access | kind<<4, 0, 0},
		{opShift, access, 0, 16},
		{opAndValue, kind, 0, 0xffff},
		{opLoadWord, major | ctx<<4, 4, 0},
		{opLoadWord, minor | ctx<<4, 8, 0},
	}
	for _, r := range rules {
		wanted := int32(unix.BPF_DEVCG_DEV_CHAR)
		if r.block {
			wanted = unix.BPF_DEVCG_DEV_BLOCK
		}
		one := []instruction{
			{opUnless, kind, 0, wanted},
			// What is asked for beyond what is allowed; ctx is not needed any more.
			{opMove, ctx | access<<4, 0, 0},
			{opAndValue, ctx, 0, ^int32(r.access)},
			{opUnless, ctx, 0, 0},
			{opUnless, major, 0, int32(r.major)},
		}
		if !r.anyMinor {
			one = append(one, instruction{opUnless, minor, 0, int32(r.minor)})
		}
		one = append(one, instruction{opMoveValue, result, 0, 1}, instruction{opExit, 0, 0, 0})
		for i := range one {
			if one[i].code == opUnless {
				one[i].off = int16(len(one) - i - 1) // to the next rule
			}
		}
		all = append(all, one...)
	}
	return append(all, instruction{opMoveValue, result, 0, 0}, instruction{opExit, 0, 0, 0})
}

// programInfo is the beginning of struct bpf_prog_info. The tag stands for the instructions.
type programInfo struct {
	kind, id              uint32
	tag                   [8]byte
	jitedLen, translLen   uint32
	jited, transl, loaded uint64
	uid, maps             uint32
	mapIDs                uint64
	name                  [16]byte
}

// bpf is bpf(2) with one of its many structures.
func bpf[T any](command uintptr, attr *T) (uintptr, error) {
	for tries := 0; ; tries++ {
		r, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(unsafe.Pointer(attr)), unsafe.Sizeof(*attr))
		switch {
		case errno == 0:
			return r, nil
		case (errno == unix.EAGAIN || errno == unix.EINTR) && tries < 30: // the verifier was interrupted by a signal
		default:
			return 0, errno
		}
	}
}

// loadProgram gives a program to the kernel. It lives as long as it is open or attached.
func loadProgram(code []instruction) (*os.File, error) {
	license := []byte("GPL\x00")
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&code[0])
	pin.Pin(&license[0])
	attr := struct {
		kind, count       uint32
		code, license     uint64
		logLevel, logSize uint32
		log               uint64
		version, flags    uint32
		name              [16]byte
	}{
		kind: unix.BPF_PROG_TYPE_CGROUP_DEVICE, count: uint32(len(code)),
		code: uint64(uintptr(unsafe.Pointer(&code[0]))), license: uint64(uintptr(unsafe.Pointer(&license[0]))),
	}
	copy(attr.name[:], programName)
	fd, err := bpf(unix.BPF_PROG_LOAD, &attr)
	if err != nil {
		return nil, fmt.Errorf("load a device program of %d instructions: %w", len(code), err)
	}
	return os.NewFile(fd, programName), nil
}

func infoOf(prog *os.File) (info programInfo, err error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&info)
	attr := struct {
		fd, size uint32
		info     uint64
	}{uint32(prog.Fd()), uint32(unsafe.Sizeof(info)), uint64(uintptr(unsafe.Pointer(&info)))}
	if _, err = bpf(unix.BPF_OBJ_GET_INFO_BY_FD, &attr); err != nil {
		err = fmt.Errorf("ask about a device program: %w", err)
	}
	return info, err
}

// attached opens the device programs of a group itself, without those of the groups above it.
func attached(group *os.File) ([]*os.File, error) {
	var ids [64]uint32 // BPF_CGROUP_MAX_PROGS
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&ids)
	attr := struct {
		group, kind, query, flags uint32
		ids                       uint64
		count, _                  uint32
	}{group: uint32(group.Fd()), kind: unix.BPF_CGROUP_DEVICE, ids: uint64(uintptr(unsafe.Pointer(&ids))), count: uint32(len(ids))}
	if _, err := bpf(unix.BPF_PROG_QUERY, &attr); err != nil {
		return nil, fmt.Errorf("list the device programs of %s: %w", group.Name(), err)
	}
	var all []*os.File
	for _, id := range ids[:attr.count] {
		byID := struct{ id, next, flags uint32 }{id: id}
		fd, err := bpf(unix.BPF_PROG_GET_FD_BY_ID, &byID)
		if errors.Is(err, unix.ENOENT) {
			continue // replaced meanwhile
		}
		if err != nil {
			closeFiles(all)
			return nil, fmt.Errorf("open a device program of %s: %w", group.Name(), err)
		}
		all = append(all, os.NewFile(fd, "device program"))
	}
	return all, nil
}

func closeFiles(all []*os.File) {
	for _, f := range all {
		f.Close()
	}
}

// attachProgram makes a group's one device program let through what the rules say. The kernel runs all the programs of a
// group, and what one of them denies is denied: so the one that is there, the runtime's or Berth's own, is replaced,
// which the kernel does in one step.
func attachProgram(dir string, rules []deviceRule) error {
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
	prog, err := loadProgram(program(rules))
	if err != nil {
		return err
	}
	defer prog.Close()
	attr := struct{ group, prog, kind, flags, replace uint32 }{
		group: uint32(group.Fd()), prog: uint32(prog.Fd()), kind: unix.BPF_CGROUP_DEVICE, flags: unix.BPF_F_ALLOW_MULTI,
	}
	switch len(now) {
	case 0:
	case 1:
		attr.flags |= unix.BPF_F_REPLACE
		attr.replace = uint32(now[0].Fd())
	default:
		return fmt.Errorf("group %s has %d device programs: somebody else attached one, and what it denies stays denied", dir, len(now))
	}
	if _, err := bpf(unix.BPF_PROG_ATTACH, &attr); err != nil {
		return fmt.Errorf("attach a device program to %s: %w", dir, err)
	}
	return nil
}

// checkProgram says why a group's devices are not let through as the rules say; nil if they are.
func checkProgram(dir string, rules []deviceRule) error {
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
	if len(now) != 1 {
		return fmt.Errorf("group %s has %d device programs, not Berth's alone", dir, len(now))
	}
	// The kernel does not say what a program's instructions were, but their hash.
	want, err := loadProgram(program(rules))
	if err != nil {
		return err
	}
	defer want.Close()
	is, err1 := infoOf(now[0])
	should, err2 := infoOf(want)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if is.tag != should.tag {
		return fmt.Errorf("the device program of %s (%q, tag %x) is not the one with tag %x", dir, cString(is.name[:]), is.tag, should.tag)
	}
	return nil
}

func cString(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return strings.ToValidUTF8(string(b), "?")
}
