package bpf

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// object is the structure of bpf(2) for files of a bpffs.
type object struct {
	path  uint64
	fd, _ uint32 // flags
}

// Pin makes a file of a bpffs that keeps a program, a link or a table when no process has it open.
func Pin(f *os.File, path string) error {
	text := append([]byte(path), 0)
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&text[0])
	attr := object{path: uint64(uintptr(unsafe.Pointer(&text[0]))), fd: uint32(f.Fd())}
	if _, err := Call(unix.BPF_OBJ_PIN, &attr); err != nil {
		return fmt.Errorf("pin %s: %w", path, err)
	}
	return nil
}

// OpenPinned opens the object that a file of a bpffs keeps.
func OpenPinned(path string) (*os.File, error) {
	text := append([]byte(path), 0)
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&text[0])
	attr := object{path: uint64(uintptr(unsafe.Pointer(&text[0])))}
	fd, err := Call(unix.BPF_OBJ_GET, &attr)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return os.NewFile(fd, path), nil
}

// Pin makes a file of a bpffs that keeps the table.
func (m *Map) Pin(path string) error { return Pin(m.file, path) }

// OpenMap opens a table that a file of a bpffs keeps; its keys and values have these sizes.
func OpenMap(path string, key, value int) (*Map, error) {
	f, err := OpenPinned(path)
	if err != nil {
		return nil, err
	}
	return &Map{file: f, key: key, value: value}, nil
}

// Keys lists the keys of the table. The caller keeps others from changing it meanwhile.
func (m *Map) Keys() (all [][]byte, err error) {
	for last := []byte(nil); ; {
		next := make([]byte, m.key)
		var pin runtime.Pinner
		pin.Pin(&next[0])
		attr := element{fd: uint32(m.file.Fd()), value: uint64(uintptr(unsafe.Pointer(&next[0])))}
		if last != nil {
			pin.Pin(&last[0])
			attr.key = uint64(uintptr(unsafe.Pointer(&last[0])))
		}
		_, err := Call(unix.BPF_MAP_GET_NEXT_KEY, &attr)
		pin.Unpin()
		if err == unix.ENOENT { //nolint:errorlint // of the system call itself
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all, last = append(all, next), next
	}
}

// AttachNetns attaches a program to a network namespace, as long as the link that it returns is open or pinned.
func AttachNetns(prog, ns *os.File, place uint32) (*os.File, error) {
	attr := struct{ prog, target, place, flags uint32 }{uint32(prog.Fd()), uint32(ns.Fd()), place, 0}
	fd, err := Call(unix.BPF_LINK_CREATE, &attr)
	if err != nil {
		return nil, fmt.Errorf("attach program %s to the network namespace %s: %w", prog.Name(), ns.Name(), err)
	}
	return os.NewFile(fd, "bpf-link"), nil
}

// Replace puts a program in place of the one that a link attaches. The link's network namespace is never without one.
func Replace(link, prog *os.File) error {
	attr := struct{ link, prog, flags, old uint32 }{uint32(link.Fd()), uint32(prog.Fd()), 0, 0}
	if _, err := Call(unix.BPF_LINK_UPDATE, &attr); err != nil {
		return fmt.Errorf("put program %s in place of the one of link %s: %w", prog.Name(), link.Name(), err)
	}
	return nil
}

// NetnsOf returns the inode number of the network namespace that a link is attached to; 0 if it is attached no more.
func NetnsOf(link *os.File) (uint32, error) {
	var info struct{ kind, id, prog, _, netns, place uint32 }
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&info)
	attr := struct {
		fd, size uint32
		info     uint64
	}{uint32(link.Fd()), uint32(unsafe.Sizeof(info)), uint64(uintptr(unsafe.Pointer(&info)))}
	if _, err := Call(unix.BPF_OBJ_GET_INFO_BY_FD, &attr); err != nil {
		return 0, fmt.Errorf("ask about link %s: %w", link.Name(), err)
	}
	return info.netns, nil
}

// Detach ends a link, also if files of a bpffs keep it.
func Detach(link *os.File) error {
	attr := struct{ fd uint32 }{uint32(link.Fd())}
	if _, err := Call(unix.BPF_LINK_DETACH, &attr); err != nil {
		return fmt.Errorf("detach link %s: %w", link.Name(), err)
	}
	return nil
}
