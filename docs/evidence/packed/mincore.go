package main

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// resident returns how many bytes of a mapping are in memory.
func resident(m []byte) (n int64, err error) {
	page := os.Getpagesize()
	vec := make([]byte, (len(m)+page-1)/page)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)), uintptr(unsafe.Pointer(&vec[0]))); errno != 0 {
		return 0, errno
	}
	for _, v := range vec {
		if v&1 != 0 {
			n += int64(page)
		}
	}
	return n, nil
}
