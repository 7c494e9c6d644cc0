package bpf

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// The registers of a program (Documentation/bpf/standardization/abi.rst). A call changes the first six and keeps the
// rest.
const (
	R0 = iota // the result of a call or of the program
	R1        // the program's context; a call's first argument
	R2
	R3
	R4
	R5
	R6
	R7
	R8
	R9
	FP // end of the stack
)

// Size is how many bytes an instruction reads or compares.
type Size uint8

// The sizes.
const (
	Byte Size = unix.BPF_B
	Half Size = unix.BPF_H
	Word Size = unix.BPF_W
)

// The conditions of Asm.If.
const (
	Equal    uint8 = unix.BPF_JEQ
	NotEqual uint8 = unix.BPF_JNE
	Less     uint8 = unix.BPF_JLT
)

// Asm assembles a program whose jumps go to labels. Jumps go forward only.
type Asm struct {
	code   []Instruction
	labels map[string]int
	jumps  map[int]string
}

// NewAsm begins a program.
func NewAsm() *Asm { return &Asm{labels: map[string]int{}, jumps: map[int]string{}} }

// Label names the place of the next instruction.
func (a *Asm) Label(name string) { a.labels[name] = len(a.code) }

// Set gives a register a value.
func (a *Asm) Set(reg uint8, value int32) { a.op(MoveValue, reg, 0, 0, value) }

// Copy copies a register.
func (a *Asm) Copy(to, from uint8) { a.op(Move, to, from, 0, 0) }

// Add adds a value to a register.
func (a *Asm) Add(reg uint8, value int32) {
	a.op(unix.BPF_ALU64|unix.BPF_ADD|unix.BPF_K, reg, 0, 0, value)
}

// AddReg adds a register to another.
func (a *Asm) AddReg(to, from uint8) { a.op(unix.BPF_ALU64|unix.BPF_ADD|unix.BPF_X, to, from, 0, 0) }

// And masks a register.
func (a *Asm) And(reg uint8, mask int32) {
	a.op(unix.BPF_ALU64|unix.BPF_AND|unix.BPF_K, reg, 0, 0, mask)
}

// Left shifts a register left.
func (a *Asm) Left(reg uint8, by int32) {
	a.op(unix.BPF_ALU64|unix.BPF_LSH|unix.BPF_K, reg, 0, 0, by)
}

// Load reads the value at an offset from the address in a register.
func (a *Asm) Load(size Size, to, from uint8, off int16) {
	a.op(unix.BPF_LDX|uint8(size)|unix.BPF_MEM, to, from, off, 0)
}

// Store writes a register to an offset from the address in another.
func (a *Asm) Store(size Size, to, from uint8, off int16) {
	a.op(unix.BPF_STX|uint8(size)|unix.BPF_MEM, to, from, off, 0)
}

// Call calls a helper of the kernel.
func (a *Asm) Call(helper int32) { a.op(unix.BPF_JMP|unix.BPF_CALL, 0, 0, 0, helper) }

// If jumps if the condition holds for the lower 32 bits of a register and a value.
func (a *Asm) If(cond, reg uint8, value int32, to string) {
	a.jumps[len(a.code)] = to
	a.op(unix.BPF_JMP32|cond|unix.BPF_K, reg, 0, 0, value)
}

// Goto jumps.
func (a *Asm) Goto(to string) {
	a.jumps[len(a.code)] = to
	a.op(unix.BPF_JMP|unix.BPF_JA, 0, 0, 0, 0)
}

// IfNull jumps if a register holds no address.
func (a *Asm) IfNull(reg uint8, to string) {
	a.jumps[len(a.code)] = to
	a.op(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, reg, 0, 0, 0)
}

// Exit ends the program; its result is R0.
func (a *Asm) Exit() { a.op(Exit, 0, 0, 0, 0) }

// Return ends the program.
func (a *Asm) Return(value int32) {
	a.Set(R0, value)
	a.op(Exit, 0, 0, 0, 0)
}

// UnlessSame jumps if the bytes at an offset of the stack differ from bytes. The kernel wants aligned reads of the
// stack.
func (a *Asm) UnlessSame(off int16, bytes []byte, to string) {
	for len(bytes) > 0 {
		size, n, value := Byte, 1, int32(bytes[0])
		switch {
		case off%4 == 0 && len(bytes) >= 4:
			size, n, value = Word, 4, int32(binary.NativeEndian.Uint32(bytes))
		case off%2 == 0 && len(bytes) >= 2:
			size, n, value = Half, 2, int32(binary.NativeEndian.Uint16(bytes))
		}
		a.Load(size, R2, FP, off)
		a.If(NotEqual, R2, value, to)
		off, bytes = off+int16(n), bytes[n:]
	}
}

func (a *Asm) op(code, dst, src uint8, off int16, imm int32) {
	a.code = append(a.code, Op(code, dst, src, off, imm))
}

// Code returns the program. The error says that a jump has no valid label.
func (a *Asm) Code() ([]Instruction, error) {
	for at, label := range a.jumps {
		to, ok := a.labels[label]
		if off := to - at - 1; !ok || off < 0 || off > 1<<15-1 {
			return nil, fmt.Errorf("program of %d instructions: the jump at %d to %q leads nowhere", len(a.code), at, label)
		}
		a.code[at].Off = int16(to - at - 1)
	}
	return a.code, nil
}

// StoreValue writes a value to an offset from the address in a register.
func (a *Asm) StoreValue(size Size, to uint8, off int16, value int32) {
	a.op(unix.BPF_ST|uint8(size)|unix.BPF_MEM, to, 0, off, value)
}

// Map gives a register the address of a map.
func (a *Asm) Map(reg uint8, m *Map) {
	a.op(unix.BPF_LD|unix.BPF_DW|unix.BPF_IMM, reg, pseudoMap, 0, int32(m.file.Fd()))
	a.op(0, 0, 0, 0, 0) // the upper half of the 64-bit value
}

// pseudoMap is BPF_PSEUDO_MAP_FD: the value is the descriptor of a map.
const pseudoMap = 1
