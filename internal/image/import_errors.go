package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// archiveErr returns a refusal if err means a damaged archive. An error of the kernel or the context, or an existing
// refusal, is only wrapped.
func archiveErr(what string, err error) error {
	var errno syscall.Errno
	var refusal *refuse.Error
	switch {
	case errors.As(err, &errno), errors.As(err, &refusal), isContext(err):
		return readErr(what, err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return refuse.Invalidf("%s ends in the middle", what)
	case errors.Is(err, tar.ErrHeader):
		return refuse.Invalidf("%s is damaged, or no tar at all", what)
	}
	return refuse.Invalidf("%s is damaged: %w", what, err)
}

// entryErr adds the entry's name to err. The kernel's errors about an impossible name become a refusal.
func entryErr(name string, err error) error {
	name = shown(name)
	if _, ok := errors.AsType[*refuse.Error](err); ok {
		return fmt.Errorf("entry %q: %w", name, err)
	}
	var errno syscall.Errno
	_ = errors.As(err, &errno) // 0 if it is none
	switch errno {
	case unix.ENAMETOOLONG, unix.ENOTDIR, unix.ELOOP, unix.EEXIST, unix.EINVAL, unix.ENOENT, unix.EMLINK:
		return refuse.Invalidf("entry %q: %w", name, err)
	}
	return fmt.Errorf("entry %q: %w", name, err)
}

// shown returns a name for a message: its beginning, if it is long.
func shown(name string) string {
	const most = 200
	if len(name) > most {
		return name[:most] + "…"
	}
	return name
}

func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
