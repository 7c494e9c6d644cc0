package oci

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tinyELF returns a static amd64 program with this machine code.
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

func TestReadELF(t *testing.T) {
	self, err := os.Open("/bin/sh") // dynamic, everywhere
	if err != nil {
		t.Skip("no /bin/sh to look at")
	}
	defer self.Close()
	want, err := elf.NewFile(self)
	if err != nil {
		t.Skipf("/bin/sh is not a program: %v", err)
	}
	got, err := readELF(self)
	if err != nil || got.machine != want.Machine || got.class != want.Class {
		t.Errorf("got %+v %v, want %v", got, err, want.FileHeader)
	}
	if got, err := readELF(bytes.NewReader(tinyELF(nil))); err != nil || got.loader != "" {
		t.Errorf("a static program: %+v %v", got, err)
	}
}

// FuzzCommand checks that no content of a file makes the check of a command panic.
func FuzzCommand(f *testing.F) {
	f.Add([]byte("#!/bin/sh\n"))
	f.Add([]byte("#! \n"))
	f.Add([]byte("#!/x"))
	f.Add(tinyELF([]byte{0xc3}))
	f.Add([]byte("\x7fELF\x02\x02\x01"))
	if sh, err := os.ReadFile("/bin/sh"); err == nil {
		f.Add(sh[:min(len(sh), 4096)])
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, "x"), data, 0o755); err != nil {
			t.Fatal(err)
		}
		root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(root)
		_ = lookUp(func(file string) (*os.File, error) { return openIn(root, file) }, nil, "x", []string{"PATH=/"}, "/")
	})
}
