package main

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// output tries file operations on its standard output, and opens it again by name to write to it, as root and as a user.
func output() map[string]string {
	all := map[string]string{
		"fallocate": name(unix.Fallocate(1, 0, 0, 1<<30)),
		"punch":     name(unix.Fallocate(1, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 1<<20)),
		"ftruncate": name(unix.Ftruncate(1, 1<<30)),
		"fchmod":    name(unix.Fchmod(1, 0o6777)),
		"fchown":    name(unix.Fchown(1, 1000, 1000)),
	}
	_, err := unix.Pwrite(1, []byte("forged"), 0)
	all["pwrite"] = name(err)
	_, err = unix.Seek(1, 0, unix.SEEK_SET)
	all["lseek"] = name(err)
	again := func(as string) {
		for what, flags := range map[string]int{"read": unix.O_RDONLY | unix.O_NONBLOCK, "both": unix.O_RDWR, "write": unix.O_WRONLY | unix.O_TRUNC} {
			fd, err := unix.Open("/dev/stdout", flags, 0)
			if all["open to "+what+as] = name(err); err == nil && what == "write" {
				_, err = unix.Write(fd, []byte("by /dev/stdout"+as+"\n"))
				all["write"+as] = name(err)
			}
			_ = unix.Close(fd)
		}
	}
	again("")
	if err := syscall.Setuid(1000); err != nil { // for all threads
		all["setuid"] = name(err)
	}
	again(" as a user")
	_, _ = os.Stdout.WriteString("done\n")
	return all
}
