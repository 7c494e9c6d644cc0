package oci

import (
	"encoding/binary"
	"time"
)

// tinyELF makes a static amd64 program of some machine code.
func tinyELF(code []byte) []byte {
	const base, head = 0x400000, 64 + 56
	le := binary.LittleEndian
	b := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, head-7)...)
	le.PutUint16(b[16:], 2)         // ET_EXEC
	le.PutUint16(b[18:], 62)        // EM_X86_64
	le.PutUint32(b[20:], 1)         // EV_CURRENT
	le.PutUint64(b[24:], base+head) // entry
	le.PutUint64(b[32:], 64)        // program headers
	le.PutUint16(b[52:], 64)        // size of this header
	le.PutUint16(b[54:], 56)        // size of a program header
	le.PutUint16(b[56:], 1)         // one of them
	p := b[64:]
	le.PutUint32(p, 1)     // PT_LOAD
	le.PutUint32(p[4:], 5) // read, execute
	le.PutUint64(p[16:], base)
	le.PutUint64(p[24:], base)
	le.PutUint64(p[32:], uint64(head+len(code)))
	le.PutUint64(p[40:], uint64(head+len(code)))
	le.PutUint64(p[48:], 0x1000)
	return append(b, code...)
}

func sleepMS(n int) { time.Sleep(time.Duration(n) * time.Millisecond) }
