package file

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// NotRootOnly is the error of a path that others than root can change.
type NotRootOnly struct {
	At string // the file, or the folder on the way to it
}

func (e *NotRootOnly) Error() string {
	return fmt.Sprintf("others than root can change %s (chown root, chmod go-w)", e.At)
}

// RootOnly resolves the links of a path, and refuses one that others than root can change, or whose folders let others put
// something else in its place: the error is *NotRootOnly. A sticky folder of root's, as /tmp, lets nobody.
func RootOnly(path string) (resolved string, err error) {
	if resolved, err = filepath.EvalSymlinks(path); err != nil {
		return "", err
	}
	if resolved, err = filepath.Abs(resolved); err != nil {
		return "", err
	}
	for at := resolved; ; at = filepath.Dir(at) {
		info, err := os.Lstat(at)
		if err != nil {
			return "", err
		}
		st := info.Sys().(*syscall.Stat_t)
		if st.Uid != 0 || info.Mode().Perm()&0o022 != 0 && (at == resolved || info.Mode()&fs.ModeSticky == 0) {
			return "", &NotRootOnly{At: at}
		}
		if at == "/" {
			return resolved, nil
		}
	}
}
