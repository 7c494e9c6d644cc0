package group

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// ReadFile reads a control file and trims the white space around its text.
func ReadFile(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// Gone reports whether err says that a file or its group does not exist (any more). A control file that was open while
// its group was removed answers ENODEV.
func Gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }

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

// Inode returns the number that identifies a group: the kernel numbers groups upwards and never reuses a number. ok is
// false if the folder does not exist, children if the group contains no other group.
func Inode(dir string) (ino uint64, children, ok bool, err error) {
	var st unix.Stat_t
	err = unix.Stat(dir, &st)
	if Gone(err) {
		return 0, false, false, nil
	}
	if err != nil {
		return 0, false, false, fmt.Errorf("look at %s: %w", dir, err)
	}
	return st.Ino, st.Nlink != 2, true, nil // kernfs counts a link for each folder inside
}

// Number reads a control file of one number; nil if it cannot be read.
func Number(file string) *int64 {
	text, err := ReadFile(file)
	if err != nil {
		return nil
	}
	return parsed(text)
}

func parsed(text string) *int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil
	}
	return &n
}

// Field reads one number from a control file of "name number" lines; nil if it has none.
func Field(file, name string) *int64 {
	text, err := ReadFile(file)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == name {
			return parsed(f[1])
		}
	}
	return nil
}
