package embedded

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/zap"

	"berth/internal/sys/refuse"
)

// lockWait is how long the database may be in use by another process: one that ends needs less.
const lockWait = 3 * time.Second

// sound refuses data that etcd could not start from. Itself it would panic in goroutines of its own, die of a signal (SIGBUS, where the file of the
// database ends before what it maps), or start and answer nothing. Data that are not there, and what a first start that was killed left, are sound. A
// database that another process has open is waited for.
func sound(data string, wait time.Duration) error {
	err := check(data, wait)
	if _, ok := errors.AsType[*refuse.Error](err); ok || err == nil {
		return err
	}
	if !mayPass(err) {
		return &refuse.Error{
			Kind: refuse.Failed, What: fmt.Sprintf("the cluster state in %s is damaged: %v", data, err),
			Remedy: fmt.Sprintf("mv %s %s.damaged, then berthd --restore BACKUP; without a backup start berthd on each host, and each agent claims anew for the nodes that it has: docs/cluster-state.md", data, data),
			Err:    err,
		}
	}
	return &refuse.Error{
		Kind: refuse.Failed, What: fmt.Sprintf("the cluster state in %s cannot be read: %v", data, err),
		Remedy: "dmesg says whether the disk fails; leave the data where they are, and start berthd again when they can be read; of a disk that stays so, restore a backup: docs/cluster-state.md",
		Err:    err,
	}
}

// mayPass reports whether an error is of who reads the data, and not of the data: the kernel said it, of a disk, or of a process without descriptors.
func mayPass(err error) bool {
	_, said := errors.AsType[syscall.Errno](err)
	return said
}

// reading does something that reads data, and turns what bbolt and etcd panic with, over those that are not as they were written, into an error: also a
// fault of memory, where a number of a page leads out of the file that is mapped.
func reading(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	return do()
}

// check is sound with an error that has no remedy, or a refusal.
func check(data string, wait time.Duration) error {
	return reading(func() error {
		applied, err := checkDatabase(filepath.Join(data, "member", "snap", "db"), wait)
		if err != nil {
			return err
		}
		kept, whole, err := checkLog(filepath.Join(data, "member", "wal"))
		switch {
		case err != nil:
			return err
		case kept < applied:
			return fmt.Errorf("its write-ahead log ends at entry %d, and the database has entry %d", kept, applied)
		case applied == 0 && !whole:
			return fmt.Errorf("its database is missing or empty, and the write-ahead log does not have all")
		}
		return nil
	})
}

// checkDatabase reads all keys of etcd's database, and returns the entry of the log that it was last changed by; 0 if it has none or is not there.
func checkDatabase(path string, wait time.Duration) (applied uint64, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	is, err := f.Stat()
	if err != nil || is.Mode().IsRegular() && is.Size() == 0 {
		return 0, err
	}
	switch need, err := used(f); {
	case err != nil:
		return 0, err
	case need == 0:
		return 0, fmt.Errorf("%s is no database", path)
	case is.Size() < need:
		return 0, fmt.Errorf("%s has %d bytes of %d", path, is.Size(), need)
	}
	// Read as a stream: a disk that fails says so here, and not by a fault of memory; and what bbolt reads afterwards, page by page, is in memory.
	if _, err := io.Copy(io.Discard, io.NewSectionReader(f, 0, is.Size())); err != nil {
		return 0, err
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: wait})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return 0, refuse.Busyf("another process has the cluster state in %s open, as another berthd", path)
	}
	if err != nil {
		return 0, err
	}
	defer db.Close()
	err = db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			c := b.Cursor()
			for k, v := c.First(); k != nil; k, v = c.Next() {
				if string(name) == "meta" && string(k) == "consistent_index" && len(v) == 8 {
					applied = binary.BigEndian.Uint64(v)
				}
			}
			return nil
		})
	})
	return applied, err
}

// used returns the bytes that a database of bbolt takes in its file, from the newer of the two pages at its beginning that say so (type Meta in
// bbolt/internal/common/meta.go); 0 if none does.
func used(f io.ReaderAt) (size int64, err error) {
	const head, sum, length = 16, 56, 64 // bytes before Meta, before its checksum, and of it
	var newest uint64
	page := int64(os.Getpagesize())
	for i := range int64(2) {
		p := make([]byte, head+length)
		if _, err := f.ReadAt(p, i*page); errors.Is(err, io.EOF) {
			continue
		} else if err != nil {
			return 0, err
		}
		m, at := p[head:], binary.NativeEndian
		h := fnv.New64a()
		h.Write(m[:sum])
		if at.Uint32(m) != 0xED0CDAED || at.Uint64(m[sum:]) != h.Sum64() {
			continue
		}
		if id := at.Uint64(m[48:]); size == 0 || id > newest {
			page = int64(at.Uint32(m[8:]))
			newest, size = id, int64(at.Uint64(m[40:]))*page
		}
	}
	return size, nil
}

// checkLog reads etcd's write-ahead log, and returns its last entry; 0 if there is no log. whole says that the log begins with the first entry. A last
// record that was not written whole, as after a power cut, is left to etcd, which drops it.
func checkLog(dir string) (last uint64, whole bool, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("its write-ahead log %s: %w", dir, err)
		}
	}()
	if _, err := os.ReadDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, false, err
	}
	if !wal.Exist(dir) {
		return 0, true, nil
	}
	quiet := zap.NewNop()
	snaps, err := wal.ValidSnapshotEntries(quiet, dir)
	if err != nil {
		return 0, false, err
	}
	from := &walpb.Snapshot{}
	if len(snaps) > 0 {
		from = snaps[len(snaps)-1]
	}
	w, err := wal.OpenForRead(quiet, dir, from)
	if err != nil {
		return 0, false, err
	}
	defer w.Close()
	_, state, entries, err := w.ReadAll()
	if err != nil {
		return 0, false, err
	}
	last = from.GetIndex() + uint64(len(entries))
	if state.GetCommit() > last {
		return 0, false, fmt.Errorf("it ends at entry %d, and entry %d is settled", last, state.GetCommit())
	}
	return last, from.GetIndex() == 0, nil
}
