package oci

import (
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// stdio gives the runtime the streams of the node's process 1: pipes and null devices that were made for it. Call restore
// after create.
//
// As root on the host, the runtimes make the node's root the owner of every stream that they pass on. Pipes without a name
// stay the node's, so that it can reopen /dev/stdout. restore gives files with a name on the host, such as the pipe to the
// node's log, back to their owners before the node's command runs.
func (l *Launch) stdio(cmd *exec.Cmd) (restore func(), err error) {
	var null *os.File
	files := []*os.File{l.Stdin, l.Stdout, l.Stderr}
	for i, f := range files {
		if f != nil && !isNull(f) {
			continue
		}
		if null == nil {
			if null, err = l.null(); err != nil {
				return nil, err
			}
		}
		files[i] = null
	}
	// Files, never pipes: Wait would wait for the node's init, which keeps them open.
	cmd.Stdin, cmd.Stdout, cmd.Stderr = files[0], files[1], files[2]
	back := keepOwners(files...)
	return func() {
		back()
		if null != nil {
			null.Close()
		}
	}, nil
}

// null makes a null device in the plan's tmpfs, which only this node sees.
func (l *Launch) null() (*os.File, error) {
	return makeNull(filepath.Join(l.Plan.Dir, ".null"), int(l.Plan.IDs.Base))
}

func isNull(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3)
}

// keepOwners records the owners of the files that have a name on the host. restore gives the files back to them.
func keepOwners(files ...*os.File) (restore func()) {
	type owner struct {
		f        *os.File
		uid, gid int
	}
	var owners []owner
	for _, f := range files {
		var st unix.Stat_t
		var fs unix.Statfs_t
		fd := int(f.Fd())
		if unix.Fstat(fd, &st) != nil || unix.Fstatfs(fd, &fs) != nil || fs.Type == unix.PIPEFS_MAGIC || fs.Type == unix.SOCKFS_MAGIC {
			continue
		}
		owners = append(owners, owner{f, int(st.Uid), int(st.Gid)})
	}
	return func() {
		for _, o := range owners {
			var st unix.Stat_t
			if unix.Fstat(int(o.f.Fd()), &st) == nil && (int(st.Uid) != o.uid || int(st.Gid) != o.gid) {
				_ = o.f.Chown(o.uid, o.gid)
			}
		}
	}
}
