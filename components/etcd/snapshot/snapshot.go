// Package snapshot saves the data of etcd to a file and restores the data of a member from such a
// file. The files are compatible with etcdctl and etcdutl.
//
// https://etcd.io/docs/v3.6/op-guide/recovery/
package snapshot

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"hyperkube/components/etcd/database"
)

// Status describes the content of a snapshot: the hash and revision, the number of keys, the size in bytes and the
// version of etcd's storage format.
type Status = snapshot.Status

// RestoreOptions are the parameters of Restore.
type RestoreOptions struct {
	// Snapshot is the path of the snapshot file.
	Snapshot string
	// DataDir is the data directory of the member. Existing data is moved to a directory with the suffix
	// .before-restore-N.
	DataDir string
	// Name and PeerURL of the member, which becomes a single-member cluster.
	Name, PeerURL string
	// RevisionBump is added to the revision of the snapshot, so that new revisions are greater than
	// any that clients have seen since. All earlier revisions are marked as compacted, so watches
	// of old revisions fail and clients list again. Zero continues from the revision of the
	// snapshot.
	RevisionBump uint64
	// SkipHashCheck accepts a file without a valid checksum at its end, such as a copy of a member's database.
	SkipHashCheck bool
}

// Save writes a snapshot of the etcd that client is connected to. It returns an error if there is a file at path
// already. The file appears only when it is complete and synced to disk. On error, no new file is left.
func Save(ctx context.Context, client *clientv3.Client, path string) (err error) {
	if _, err := os.Stat(path); err == nil {
		return fmt.Errorf("%s already exists", path)
	}
	from, err := client.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("requesting a snapshot from etcd: %w", err)
	}
	defer from.Close()
	part := path + ".part"
	to, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("writing the snapshot: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(part))
		}
	}()
	n, err := io.Copy(to, from)
	if err == nil && n%512 != sha256.Size {
		err = fmt.Errorf("it ended after %d bytes", n)
	}
	if err == nil {
		err = to.Sync()
	}
	if err = errors.Join(err, to.Close()); err != nil {
		return fmt.Errorf("writing the snapshot: %w", err)
	}
	if err := os.Rename(part, path); err != nil {
		return fmt.Errorf("writing the snapshot: %w", err)
	}
	return syncDir(filepath.Dir(path))
}

// Read checks the structure of a snapshot file and returns its status. It does not compare the checksum at the end of
// the file, which Restore does. It returns an error if the file is missing, empty or damaged.
func Read(path string) (Status, error) {
	if err := check(path); err != nil {
		return Status{}, err
	}
	s, err := snapshot.NewV3(zap.NewNop()).Status(path)
	if err != nil {
		return s, fmt.Errorf("reading the snapshot %s: %w", path, err)
	}
	return s, nil
}

// check returns an error if the snapshot file is missing, empty or damaged in a way at which etcd's
// own functions panic.
func check(path string) error {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("reading the snapshot: %w", err)
	}
	has, err := database.Inspect(path)
	switch {
	case err != nil:
		return fmt.Errorf("the snapshot %s is damaged: %w", path, err)
	case !has.Exists:
		return fmt.Errorf("the snapshot %s is empty", path)
	}
	return nil
}

// Restore creates the data of a member from a snapshot. It returns an error if the member is running or the snapshot
// is damaged. It moves existing data to the directory whose name it returns, or returns "" if there was none. If an
// error occurs before the new data is complete, the existing data stays in place. An interrupted Restore may be
// repeated.
func Restore(r RestoreOptions) (old string, err error) {
	dir := filepath.Clean(r.DataDir)
	if err := checkIdle(dir); err != nil {
		return "", err
	}
	if err := check(r.Snapshot); err != nil {
		return "", err
	}
	fresh := dir + ".restoring"
	if err := os.RemoveAll(fresh); err != nil {
		return "", fmt.Errorf("removing the leftovers of an earlier restore: %w", err)
	}
	err = snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: r.Snapshot, OutputDataDir: fresh, Name: r.Name, PeerURLs: []string{r.PeerURL},
		InitialCluster: r.Name + "=" + r.PeerURL, InitialClusterToken: "etcd-cluster",
		SkipHashCheck: r.SkipHashCheck, RevisionBump: r.RevisionBump, MarkCompacted: r.RevisionBump > 0,
	})
	if err != nil {
		return "", errors.Join(fmt.Errorf("restoring %s: %w", r.Snapshot, err), os.RemoveAll(fresh))
	}
	if old, err = replace(dir, fresh); err != nil {
		return old, err
	}
	return old, syncDir(filepath.Dir(dir))
}

// replace moves the directory fresh, the restored data, to dir. It moves the previous data to a new
// directory and returns its path, or "" if there was none. Where the file system supports it, both
// are exchanged atomically. Otherwise there is no data at dir for an instant, in which a start of
// etcd would create an empty cluster.
func replace(dir, fresh string) (old string, err error) {
	place := func(from string) error {
		if err := os.Rename(from, dir); err != nil {
			return fmt.Errorf("installing the restored data: %w", err)
		}
		return nil
	}
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return "", place(fresh)
	}
	for i := 1; ; i++ {
		old = fmt.Sprintf("%s.before-restore-%d", dir, i)
		if _, err := os.Lstat(old); errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	// The restored data first takes the backup name, because the exchange swaps the two names.
	if err := os.Rename(fresh, old); err != nil {
		return "", fmt.Errorf("installing the restored data: %w", err)
	}
	if unix.Renameat2(unix.AT_FDCWD, old, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE) == nil {
		return old, nil
	}
	err = os.Rename(old, fresh)
	if err == nil {
		err = os.Rename(dir, old)
	}
	if err != nil {
		return "", fmt.Errorf("keeping the existing data: %w", err)
	}
	return old, place(fresh)
}

// WaitIdle waits until no etcd member uses the data in dir. If ctx is done before, it returns the error of the last
// check, for example that etcd is using the directory.
func WaitIdle(ctx context.Context, dir string) error {
	ticker := time.NewTicker(200 * time.Millisecond) // the release of a file lock sends no notification
	defer ticker.Stop()
	for {
		err := checkIdle(dir)
		if err == nil {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return err
		}
	}
}

// checkIdle returns an error if a running etcd member uses the data in dir, or if that cannot be determined. A
// running member holds the lock of its database file. It returns nil if there is no database file.
func checkIdle(dir string) error {
	f, err := os.Open(filepath.Join(dir, "member", "snap", "db"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("checking whether etcd is running: %w", err)
	}
	defer f.Close()
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("etcd is using %s: stop it first", dir)
	case err != nil:
		return fmt.Errorf("checking whether etcd is running: %w", err)
	}
	return nil
}

// syncDir writes the entries of a directory to disk, so that renamed files in it survive a power failure.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
