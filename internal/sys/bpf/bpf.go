// Package bpf loads programs of a few instructions into the kernel, without a compiler.
package bpf

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Instruction is one instruction (struct bpf_insn). Regs holds the destination in its low half, as little-endian
// machines have it.
type Instruction struct {
	Code, Regs uint8
	Off        int16
	Imm        int32
}

// Op makes an instruction; dst and src are numbers of registers.
func Op(code, dst, src uint8, off int16, imm int32) Instruction {
	return Instruction{Code: code, Regs: dst | src<<4, Off: off, Imm: imm}
}

// The instructions that Berth's programs are made of (include/uapi/linux/bpf.h).
const (
	LoadWord  = unix.BPF_LDX | unix.BPF_W | unix.BPF_MEM
	StoreWord = unix.BPF_STX | unix.BPF_W | unix.BPF_MEM
	Move      = unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_X
	MoveValue = unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_K
	AndValue  = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K // of 32 bits
	Shift     = unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K
	Unless    = unix.BPF_JMP | unix.BPF_JNE | unix.BPF_K
	Exit      = unix.BPF_JMP | unix.BPF_EXIT
)

// Call is bpf(2) with one of its many structures.
func Call[T any](command uintptr, attr *T) (uintptr, error) {
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

// Load loads a program of a kind (BPF_PROG_TYPE_…) into the kernel under a name, which "bpftool prog" shows. The
// program lives as long as it is open or attached.
func Load(kind uint32, name string, code []Instruction) (*os.File, error) {
	return LoadFor(kind, 0, name, code)
}

// LoadFor is Load for a kind of program that is told where it will be attached (BPF_SK_LOOKUP, for example).
func LoadFor(kind, place uint32, name string, code []Instruction) (*os.File, error) {
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
		iface, place      uint32
	}{
		place: place,
		kind:  kind, count: uint32(len(code)),
		code: uint64(uintptr(unsafe.Pointer(&code[0]))), license: uint64(uintptr(unsafe.Pointer(&license[0]))),
	}
	copy(attr.name[:], name)
	fd, err := Call(unix.BPF_PROG_LOAD, &attr)
	if err != nil {
		return nil, fmt.Errorf("load program %s of %d instructions: %w", name, len(code), err)
	}
	return os.NewFile(fd, name), nil
}

// Info is the beginning of struct bpf_prog_info. The tag is a hash of the instructions.
type Info struct {
	Kind, ID              uint32
	Tag                   [8]byte
	JitedLen, TranslLen   uint32
	Jited, Transl, Loaded uint64
	UID, Maps             uint32
	MapIDs                uint64
	Name                  [16]byte
}

// InfoOf asks the kernel about an open program.
func InfoOf(prog *os.File) (info Info, err error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&info)
	attr := struct {
		fd, size uint32
		info     uint64
	}{uint32(prog.Fd()), uint32(unsafe.Sizeof(info)), uint64(uintptr(unsafe.Pointer(&info)))}
	if _, err = Call(unix.BPF_OBJ_GET_INFO_BY_FD, &attr); err != nil {
		err = fmt.Errorf("ask about program %s: %w", prog.Name(), err)
	}
	return info, err
}

// ByID opens a program by its id; the error is unix.ENOENT if there is none.
func ByID(id uint32) (*os.File, error) {
	attr := struct{ id, next, flags uint32 }{id: id}
	fd, err := Call(unix.BPF_PROG_GET_FD_BY_ID, &attr)
	if err != nil {
		return nil, err
	}
	return os.NewFile(fd, "program"), nil
}

// Attached returns the ids of the programs of a kind (BPF_CGROUP_…) that a group itself has, not those of the groups above it.
func Attached(group *os.File, kind uint32) ([]uint32, error) {
	var ids [64]uint32 // BPF_CGROUP_MAX_PROGS
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&ids)
	attr := struct {
		group, kind, query, flags uint32
		ids                       uint64
		count, _                  uint32
	}{group: uint32(group.Fd()), kind: kind, ids: uint64(uintptr(unsafe.Pointer(&ids))), count: uint32(len(ids))}
	if _, err := Call(unix.BPF_PROG_QUERY, &attr); err != nil {
		return nil, fmt.Errorf("list the programs of %s: %w", group.Name(), err)
	}
	return ids[:attr.count], nil
}
