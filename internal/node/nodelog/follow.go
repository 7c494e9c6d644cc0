package nodelog

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Follow gives a sink the data that is added to the log, woken by inotify, until ctx ends, and then the rest once more.
func (v *View) Follow(ctx context.Context, to Sink) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch log: %w", err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer events.Close()
	// The folder: its files are renamed when they are full.
	if _, err := unix.InotifyAddWatch(fd, filepath.Dir(v.log.File), unix.IN_MODIFY|unix.IN_CREATE); err != nil {
		return fmt.Errorf("watch log: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = events.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 4096)
	for {
		if err := v.More(to); err != nil {
			return err
		}
		if _, err := events.Read(buf); err != nil {
			return v.More(to)
		}
	}
}
