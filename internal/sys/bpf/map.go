package bpf

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Map is a hash table in the kernel. It lives as long as it is open or a program that uses it is.
type Map struct {
	file       *os.File
	key, value int // bytes
}

// NewMap makes an empty table under a name, which "bpftool map" shows, for at most so many keys of a size and values of a size.
func NewMap(name string, key, value, most int) (*Map, error) {
	return NewMapOf(unix.BPF_MAP_TYPE_HASH, unix.BPF_F_NO_PREALLOC, name, key, value, most)
}

// NewMapOf is NewMap for another kind of table (BPF_MAP_TYPE_…), whose keys are bytes too.
func NewMapOf(kind, flags uint32, name string, key, value, most int) (*Map, error) {
	attr := struct {
		kind, key, value, most, flags, inner, node uint32
		name                                       [16]byte
	}{kind: kind, key: uint32(key), value: uint32(value), most: uint32(most), flags: flags}
	copy(attr.name[:15], name)
	fd, err := Call(unix.BPF_MAP_CREATE, &attr)
	if err != nil {
		return nil, fmt.Errorf("make table %s of %d keys: %w", name, most, err)
	}
	return &Map{file: os.NewFile(fd, "bpf-map:"+name), key: key, value: value}, nil
}

// element is the structure of bpf(2) for one key.
type element struct {
	fd         uint32
	_          uint32
	key, value uint64
	_          uint64 // flags
}

// Put sets the value of a key.
func (m *Map) Put(key, value []byte) error {
	if len(key) != m.key || len(value) != m.value {
		return fmt.Errorf("put %d bytes under %d into a table of %d under %d", len(value), len(key), m.value, m.key)
	}
	return m.do(unix.BPF_MAP_UPDATE_ELEM, key, value)
}

// Delete removes a key. That it is not there is no error.
func (m *Map) Delete(key []byte) error {
	if len(key) != m.key {
		return fmt.Errorf("remove a key of %d bytes from a table with keys of %d", len(key), m.key)
	}
	if err := m.do(unix.BPF_MAP_DELETE_ELEM, key, nil); err != nil && err != unix.ENOENT { //nolint:errorlint // of the system call itself
		return err
	}
	return nil
}

// Has reports whether a key is there.
func (m *Map) Has(key []byte) (bool, error) {
	if len(key) != m.key {
		return false, fmt.Errorf("look for a key of %d bytes in a table with keys of %d", len(key), m.key)
	}
	err := m.do(unix.BPF_MAP_LOOKUP_ELEM, key, make([]byte, m.value))
	if err == unix.ENOENT { //nolint:errorlint // of the system call itself
		return false, nil
	}
	return err == nil, err
}

func (m *Map) do(command uintptr, key, value []byte) error {
	kept := append(append(make([]byte, 0, len(key)+len(value)+1), key...), value...)[:len(key)+len(value)+1]
	var pin runtime.Pinner // the kernel sees the addresses as numbers
	defer pin.Unpin()
	pin.Pin(&kept[0])
	attr := element{fd: uint32(m.file.Fd()), key: uint64(uintptr(unsafe.Pointer(&kept[0])))}
	if value != nil {
		attr.value = uint64(uintptr(unsafe.Pointer(&kept[len(key)])))
	}
	_, err := Call(command, &attr)
	return err
}

// Close closes the table. Programs go on with it.
func (m *Map) Close() error { return m.file.Close() }
