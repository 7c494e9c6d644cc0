package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/refuse"
)

// writeFile writes text to a control file with one write call, as the kernel requires. The error shows the file, the
// text and the kernel's answer.
func writeFile(file, text string) error {
	fd, err := unix.Open(file, unix.O_WRONLY|unix.O_TRUNC|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.Write(fd, []byte(text))
		_ = unix.Close(fd) // the write reports all errors
	}
	if err != nil {
		return fmt.Errorf("write %q to %s: %w", strings.TrimSpace(text), file, err)
	}
	return nil
}

// readFile reads a control file and trims the white space around its text.
func readFile(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// gone reports whether err says that a file or its group does not exist (any more). A control file that was open while
// its group was removed answers ENODEV.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }

// lacking turns "no such file" into a refusal if the group exists, so that only the kernel can lack the control file.
func lacking(file string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, dirErr := os.Stat(filepath.Dir(file)); dirErr != nil {
		return err
	}
	return refuse.Cannotf("", "this kernel offers no %s: %w", filepath.Base(file), err)
}

// inode returns the number that identifies a group: the kernel numbers groups upwards and never reuses a number. ok is
// false if the folder does not exist, children if the group contains no other group.
func inode(dir string) (ino uint64, children, ok bool, err error) {
	var st unix.Stat_t
	err = unix.Stat(dir, &st)
	if gone(err) {
		return 0, false, false, nil
	}
	if err != nil {
		return 0, false, false, fmt.Errorf("look at %s: %w", dir, err)
	}
	return st.Ino, st.Nlink != 2, true, nil // kernfs counts a link for each folder inside
}
