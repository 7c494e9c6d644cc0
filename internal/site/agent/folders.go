package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// followFolders marks nodes whose files change, or whose folder goes, until ctx ends: an event is told before the last of a change is
// on the disk, and of some changes none is told.
func (a *Agent) followFolders(ctx context.Context) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("follow the folders of nodes: %w", err)
	}
	changes := os.NewFile(uintptr(fd), "inotify")
	defer changes.Close()
	stop := context.AfterFunc(ctx, func() { _ = changes.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	top, err := unix.InotifyAddWatch(fd, a.layout.LibNodes(), unix.IN_CREATE|unix.IN_DELETE)
	if err != nil {
		return fmt.Errorf("follow %s: %w; sysctl fs.inotify.max_user_watches bounds how many folders may be", a.layout.LibNodes(), err)
	}
	watched := map[int32]string{}
	watch := func(name string) {
		if wd, err := unix.InotifyAddWatch(fd, filepath.Join(a.layout.LibNodes(), name), unix.IN_MOVED_TO|unix.IN_ONLYDIR); err == nil {
			watched[int32(wd)] = name
		} // else it is gone
		a.dirt.add(name)
	}
	entries, err := os.ReadDir(a.layout.LibNodes())
	if err != nil {
		return fmt.Errorf("follow the folders of nodes: %w", err)
	}
	for _, e := range entries {
		watch(e.Name())
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := changes.Read(buf)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("follow the folders of nodes: %w", err)
		}
		for at := 0; at+unix.SizeofInotifyEvent <= n; {
			wd, mask := int32(binary.NativeEndian.Uint32(buf[at:])), binary.NativeEndian.Uint32(buf[at+4:])
			end := at + unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(buf[at+12:]))
			name := string(bytes.TrimRight(buf[at+unix.SizeofInotifyEvent:end], "\x00"))
			at = end
			switch {
			case mask&unix.IN_Q_OVERFLOW != 0:
				return fmt.Errorf("follow the folders of nodes: too many changes at once")
			case mask&unix.IN_IGNORED != 0:
				delete(watched, wd)
			case wd == int32(top) && mask&unix.IN_CREATE != 0:
				watch(name)
			case wd == int32(top):
				a.dirt.add(name)
			case name == "status.json" || name == "spec.json":
				a.dirt.add(watched[wd])
			}
		}
	}
}
