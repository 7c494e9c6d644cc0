package embedded

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"berth/internal/sys/file"
	"berth/internal/sys/refuse"
)

// Restore makes the data of an embedded etcd from a backup. The folder must have none. Revisions go on far above those of the
// backup, and all changes before count as compacted: no host takes an older state for the one that it knew. Where it fails, nothing is left.
func Restore(backup, dir string) error {
	data := filepath.Join(dir, "data")
	if _, err := os.Stat(data); err == nil {
		return &refuse.Error{Kind: refuse.Busy, What: data + " holds a cluster state already", Remedy: "stop berthd and move it away first"}
	}
	if err := whole(backup); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of the cluster state: %w", err)
	}
	made := filepath.Join(dir, "restore")
	err := os.RemoveAll(made) // of a restore that was killed
	if err == nil {
		err = unpack(backup, made)
	}
	if err == nil {
		err = os.Rename(made, data)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("restore the cluster state from %s: %w", backup, err), os.RemoveAll(made))
	}
	return file.SyncDir(dir)
}

// unpack makes the data of an embedded etcd from a backup, in a folder that is not there, and checks that etcd can start from them.
func unpack(backup, made string) error {
	err := reading(func() error {
		if _, err := checkDatabase(backup, lockWait); err != nil {
			return err
		}
		return snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
			SnapshotPath: backup, Name: member, OutputDataDir: made, PeerURLs: []string{"http://" + peerAt}, InitialCluster: member + "=http://" + peerAt,
			InitialClusterToken: "etcd-cluster", RevisionBump: bump, MarkCompacted: true,
		})
	})
	if err == nil {
		err = check(made, lockWait)
	}
	if _, refused := errors.AsType[*refuse.Error](err); err == nil || refused || mayPass(err) {
		return err
	}
	return notWhole(err.Error())
}

// notWhole refuses a backup.
func notWhole(why string) error {
	return &refuse.Error{Kind: refuse.Invalid, What: "that is no whole backup of a cluster state: " + why, Remedy: "take another one; berthd --backup FILE writes them"}
}

// whole refuses a file that is no backup, or not all of one: etcd ends each by the SHA-256 of what comes before, whose bytes are a multiple of 512.
func whole(backup string) error {
	f, err := os.Open(backup)
	if errors.Is(err, fs.ErrNotExist) {
		return refuse.NotFoundf("there is no backup %s", backup)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	is, err := f.Stat()
	if err != nil {
		return err
	}
	sum, fits := make([]byte, sha256.Size), is.Size()%512 == sha256.Size
	h := sha256.New()
	if is.Mode().IsRegular() && fits {
		if _, err = io.CopyN(h, f, is.Size()-sha256.Size); err == nil {
			_, err = io.ReadFull(f, sum)
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", backup, err)
		}
	}
	if !fits || !bytes.Equal(sum, h.Sum(nil)) {
		return fmt.Errorf("restore the cluster state from %s: %w", backup, notWhole("the checksum at its end is missing or wrong"))
	}
	return nil
}

// bump is more than the revisions that a site makes between two backups: a billion.
const bump = 1_000_000_000
