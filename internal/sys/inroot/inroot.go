// Package inroot opens files below a folder as a process would whose root the folder is: absolute links and ".." stay inside.
package inroot

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Open opens name below an open folder. The kernel resolves it (openat2 with RESOLVE_IN_ROOT); links in /proc that lead anywhere are not
// followed. flags are those of open(2), mode is that of a new file.
//
// While a ".." is resolved the kernel must know that nothing was moved out of the folder. It gives up with EAGAIN when any process of the
// host mounts or renames something just then; then Open tries again (openat2(2), EAGAIN).
func Open(folder int, name string, flags uint64, mode uint32) (int, error) {
	return again(func() (int, error) {
		return unix.Openat2(folder, name, &unix.OpenHow{
			Flags: flags | unix.O_CLOEXEC, Mode: uint64(mode), Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
		})
	})
}

// tries is how often an open is tried: the race is lost some times in a row at most, even on a host where renames never stop.
const tries = 1000

func again(open func() (int, error)) (int, error) {
	for n := 1; ; n++ {
		fd, err := open()
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) || n == tries {
			return fd, err
		}
	}
}
