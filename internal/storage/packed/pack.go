package packed

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/fork"
	"berth/internal/sys/refuse"
	"berth/internal/sys/space"
	"berth/internal/sys/text"
	"berth/internal/sys/thread"
	"berth/internal/sys/treetar"
)

// Pack writes the merged root of an image to a new file, as the file system that the file's name stands for, and records that
// it did. lowers are the image's layers, top first; the caller keeps them from being removed. The same layers give the same bytes by the
// same program, unless erofs keeps a time before 1970: the file system's UUID and time are made from the names, sizes, owners and times in it. The file has no name until it
// is whole and recorded, and is removed by the kernel if this process is killed before.
//
// Errors: refuse.Busy if the file exists; refuse.Invalid if its name is of no known kind; refuse.Cannot if the program that
// writes the file system is not installed, or the file system of the file is full or not suited.
func (s Store) Pack(ctx context.Context, lowers []string, t Trailer, path string) (Record, error) {
	kind := KindOf(path)
	if kind == "" {
		return Record{}, refuse.Invalidf("%s: the name of the file must end in .erofs or .squashfs", path)
	}
	program, err := kind.program()
	if err != nil {
		return Record{}, err
	}
	dir, path, err := folderOf(path)
	if err != nil {
		return Record{}, err
	}
	if _, err := os.Lstat(path); err == nil {
		return Record{}, exists(path)
	}
	if err := s.make(); err != nil {
		return Record{}, err
	}
	out, err := os.OpenFile(dir, unix.O_TMPFILE|os.O_RDWR, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		return Record{}, refuse.Cannotf("write it to a local file system (ext4, xfs, btrfs, tmpfs) and copy it",
			"pack into %s: its file system %s cannot hold files without a name", path, space.FileSystem(dir))
	}
	if err != nil {
		return Record{}, fmt.Errorf("pack into %s: %w", path, err)
	}
	defer out.Close()
	fault.Point("packed file begun")
	r := Record{Kind: kind, Trailer: t}
	err = thread.Own(func() (err error) {
		r.Lost, err = s.fill(ctx, program, kind, lowers, out)
		return err
	})
	if err == nil {
		err = errors.Join(t.appendTo(out), out.Sync())
	}
	if err == nil {
		r.Digest, err = digestOf(out)
	}
	if err != nil {
		return Record{}, fmt.Errorf("pack into %s: %w", path, space.Full(dir, err))
	}
	fault.Point("packed file filled")
	var st unix.Stat_t
	if err := unix.Fstat(int(out.Fd()), &st); err != nil {
		return Record{}, fmt.Errorf("pack into %s: %w", path, err)
	}
	r.Size = st.Size
	// Recorded before it has its name: a file with a name that a kill left without a record would be a stranger's.
	place := Place{Path: path, ID: idOf(&st), Packed: true, Begun: true}
	if _, err = s.add(ctx, r, place); err != nil {
		return Record{}, err
	}
	fault.Point("packed file recorded")
	if err := linkOpen(out, path); err != nil {
		forget := s.forget(context.WithoutCancel(ctx), r.Digest, place)
		if errors.Is(err, fs.ErrExist) {
			err = exists(path)
		}
		return Record{}, errors.Join(err, forget)
	}
	fault.Point("packed file in place")
	if err := file.SyncDir(filepath.Dir(path)); err != nil {
		return Record{}, err
	}
	if err := unix.Fstat(int(out.Fd()), &st); err != nil { // a new name changes Ctime
		return Record{}, fmt.Errorf("pack into %s: %w", path, err)
	}
	place.ID, place.Begun = idOf(&st), false
	return s.add(context.WithoutCancel(ctx), r, place)
}

func exists(path string) error {
	return refuse.Busyf("%s exists already: remove it, or name another file", path)
}

// program returns the path of the program that writes file systems of this kind.
func (k Kind) program() (string, error) {
	name, pkg := "mkfs.erofs", "erofs-utils"
	if k == SquashFS {
		name, pkg = "mksquashfs", "squashfs-tools"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", refuse.Cannotf("apt install "+pkg, "packing as %s needs the program %s, which is not installed", k, name)
	}
	return path, nil
}

// fill merges the layers in a mount namespace of this thread's own and has a program write the result to a file. The thread
// must end after it.
func (s Store) fill(ctx context.Context, program string, kind Kind, lowers []string, out *os.File) (Lost, error) {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return Lost{}, fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return Lost{}, fmt.Errorf("take the mount namespace off the host's: %w", err)
	}
	if err := unix.Mount("berth-pack", s.merged(), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700,size=4m"); err != nil {
		return Lost{}, fmt.Errorf("mount a tmpfs at %s: %w", s.merged(), err)
	}
	if err := unix.Chdir(s.merged()); err != nil {
		return Lost{}, fmt.Errorf("enter %s: %w", s.merged(), err)
	}
	if err := errors.Join(os.Mkdir("root", 0o700), os.Mkdir("empty", 0o700)); err != nil {
		return Lost{}, err
	}
	// Numbers for names: mount(2) takes one page of options.
	var names []string
	for i, l := range lowers {
		name := strconv.Itoa(i)
		if err := os.Symlink(l, name); err != nil {
			return Lost{}, err
		}
		names = append(names, name)
	}
	if len(names) == 1 { // overlay wants two folders to merge
		names = append(names, "empty")
	}
	if err := unix.Mount("overlay", "root", "overlay", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "lowerdir="+strings.Join(names, ":")); err != nil {
		return Lost{}, fmt.Errorf("merge %d layers: %w", len(lowers), err)
	}
	found, err := survey("root", kind)
	if err != nil {
		return Lost{}, err
	}
	return found.lost, write(ctx, program, kind, found, out)
}

// Lost counts the files of which a packed image does not keep something.
type Lost struct {
	ACLs  int // access control lists; their files are not opened to users who could not open them with the list
	Times int // times before 1970 and after February 2106
	Parts int // parts of a second
}

// Notes describes what is not kept: one part of a sentence for each property.
func (l Lost) Notes() []string {
	var all []string
	for _, n := range []struct {
		files int
		what  string
	}{
		{l.ACLs, "access control lists, and gives nobody more rights without them"},
		{l.Times, "times before 1970 and after February 2106"},
		{l.Parts, "parts of a second"},
	} {
		if n.files > 0 {
			all = append(all, fmt.Sprintf("no %s (%s)", n.what, text.Count(n.files, "file")))
		}
	}
	return all
}

// found has the facts about a merged root that the program that packs it needs.
type found struct {
	gone  []string // white-outs that hide nothing: overlay lists them in folders that only one layer has, but they cannot be opened
	modes []string // changed modes, as mksquashfs reads them
	lost  Lost

	id     uuid.UUID // the same for the same root
	newest int64     // the latest time of a change, in seconds since 1970
	before bool      // some time is before 1970
}

// survey looks at all of a merged root.
func survey(root string, kind Kind) (f found, err error) {
	all := sha256.New()
	err = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		name := strings.TrimPrefix(path, root+"/")
		if err := unix.Lstat(path, &st); errors.Is(err, fs.ErrNotExist) {
			f.gone = append(f.gone, name)
			return nil
		} else if err != nil {
			return &fs.PathError{Op: "lstat", Path: path, Err: err}
		}
		f.newest, f.before = max(f.newest, st.Mtim.Sec), f.before || st.Mtim.Sec < 0
		size := st.Size
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			size = 0 // it depends on the file system, and on what was there before
		}
		fmt.Fprintf(all, "%q %o %d %d %d %d %d.%d\n", name, st.Mode, st.Uid, st.Gid, st.Rdev, size, st.Mtim.Sec, st.Mtim.Nsec)
		if kind == EROFS { // it keeps all
			return nil
		}
		if st.Mtim.Sec < 0 || st.Mtim.Sec > math.MaxUint32 {
			f.lost.Times++
		} else if st.Mtim.Nsec != 0 {
			f.lost.Parts++
		}
		list := make([]byte, 64<<10) // the most of an attribute (XATTR_SIZE_MAX)
		own, err := unix.Lgetxattr(path, treetar.AccessList, list)
		if _, no := unix.Lgetxattr(path, treetar.DefaultList, nil); no == nil || err == nil {
			f.lost.ACLs++
		}
		if err != nil {
			return nil //nolint:nilerr // it has no list
		}
		if strings.Contains(name, "\n") { // the end of a line
			return refuse.Cannotf("pack it as .erofs, which keeps access control lists", "%q has an access control list, which squashfs does not keep", name)
		}
		mode := treetar.ACLOf(list[:own]).Narrow(st.Mode & 0o7777)
		f.modes = append(f.modes, fmt.Sprintf("%s m %o %d %d\n", quoted(name), mode, st.Uid, st.Gid))
		return nil
	})
	f.id = uuid.NewSHA1(uuid.NameSpaceOID, all.Sum(nil))
	return f, err
}

// quoted writes a name as mksquashfs reads it in a list of changes.
func quoted(name string) string {
	var out strings.Builder
	for i := range len(name) {
		if strings.IndexByte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-", name[i]) < 0 {
			out.WriteByte('\\')
		}
		out.WriteByte(name[i])
	}
	return out.String()
}

// write runs the program on the folder root, leaves out entries that shall be gone, and changes those that shall differ.
func write(ctx context.Context, program string, kind Kind, f found, out *os.File) error {
	const to = "/proc/self/fd/3" // ExtraFiles
	args := []string{"--quiet", "-zlz4hc", "--preserve-mtime", "-x" + strconv.Itoa(1<<31-1), "-U", f.id.String(), to, "root"}
	if kind == EROFS {
		// -x: attributes stay with their files. mkfs.erofs 1.5 looks for shared ones in excluded files too.
		for _, g := range f.gone {
			args = append(args, "--exclude-path="+g)
		}
	} else { // leaves out what cannot be opened
		args = []string{"root", to, "-noappend", "-no-progress", "-quiet", "-comp", "zstd", "-xattrs"}
		if len(f.modes) > 0 {
			if err := os.WriteFile("modes", []byte(strings.Join(f.modes, "")), 0o600); err != nil {
				return fmt.Errorf("change the modes of %d files with access control lists: %w", len(f.modes), err)
			}
			args = append(args, "-pf", "modes")
		}
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.ExtraFiles = []*os.File{out}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL} // this thread's end: the file is not waited for any more
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	// Both programs take the file system's own time from SOURCE_DATE_EPOCH, and change times of files that are later. mkfs.erofs compares
	// without a sign: there, files from before 1970 would be changed too, and the file system keeps the time of packing.
	if epoch := f.newest + 1; kind == SquashFS {
		cmd.Env = append(cmd.Env, "SOURCE_DATE_EPOCH="+strconv.FormatInt(min(epoch, math.MaxUint32), 10))
	} else if !f.before {
		cmd.Env = append(cmd.Env, "SOURCE_DATE_EPOCH="+strconv.FormatInt(epoch, 10))
	}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err := fork.Run(cmd)
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	// The program does not say so in a way that can be told from other failures.
	var st unix.Statfs_t
	if unix.Fstatfs(int(out.Fd()), &st) == nil && st.Blocks > 0 && st.Bavail*uint64(st.Bsize) < scarce {
		err = unix.ENOSPC
	}
	lines := strings.Split(strings.TrimSpace(said.String()), "\n")
	return fmt.Errorf("%s: %w: %s", filepath.Base(program), err, lines[len(lines)-1])
}

// scarce is the free space in bytes below which a file system counts as full.
const scarce = 1 << 20
