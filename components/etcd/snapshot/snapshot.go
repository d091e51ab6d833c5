// Package snapshot saves what an etcd has to a file and makes a member's data
// of such a file. The files are those of etcdctl and etcdutl.
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

// Status is what a snapshot holds.
type Status = snapshot.Status

// Restored says what Restore is to make.
type Restored struct {
	// Snapshot is the file.
	Snapshot string
	// DataDir is the member's. What is there is kept beside it.
	DataDir string
	// Name and PeerURL are of the member, which will be alone.
	Name, PeerURL string
	// RevisionBump is by how much revisions go on from those of the snapshot,
	// so that they are greater than any that clients have seen since. All
	// before counts as compacted: watches of old revisions end and begin anew.
	// Zero: they go on from the snapshot's.
	RevisionBump uint64
	// SkipHashCheck takes a file without a checksum: the copy of a member's
	// database.
	SkipHashCheck bool
}

// Save writes the state of the etcd that client is connected with to path,
// which must not exist. The file appears when it is whole and on the disk.
func Save(ctx context.Context, client *clientv3.Client, path string) (err error) {
	if _, err := os.Stat(path); err == nil {
		return fmt.Errorf("%s exists already", path)
	}
	from, err := client.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("asking etcd for a snapshot: %w", err)
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

// Read tells what a snapshot holds, and checks that it is whole.
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

// check finds what etcd's own functions panic at.
func check(path string) error {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("reading the snapshot: %w", err)
	}
	has, err := database.Look(path)
	switch {
	case err != nil:
		return fmt.Errorf("the snapshot %s is damaged: %w", path, err)
	case !has.Exists:
		return fmt.Errorf("the snapshot %s is empty", path)
	}
	return nil
}

// Restore makes a member's data of a snapshot. The member must not run. The
// data that was there is moved to the folder whose name is returned, "" if
// there was none. When anything fails, that is left in place; a Restore that
// was interrupted may be repeated.
func Restore(r Restored) (old string, err error) {
	dir := filepath.Clean(r.DataDir)
	if err := idle(dir); err != nil {
		return "", err
	}
	if err := check(r.Snapshot); err != nil {
		return "", err
	}
	fresh := dir + ".restoring"
	if err := os.RemoveAll(fresh); err != nil {
		return "", fmt.Errorf("removing what an earlier restore left: %w", err)
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

// replace puts fresh in the place of dir and returns where what was there is now,
// "" if nothing was. There is something at dir at every instant, where the file
// system can do that: without, the next start would make an empty cluster.
func replace(dir, fresh string) (old string, err error) {
	place := func(from string) error {
		if err := os.Rename(from, dir); err != nil {
			return fmt.Errorf("putting the restored data in place: %w", err)
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
	// Under the old's later name first: all has its name as soon as they change places.
	if err := os.Rename(fresh, old); err != nil {
		return "", fmt.Errorf("putting the restored data in place: %w", err)
	}
	if unix.Renameat2(unix.AT_FDCWD, old, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE) == nil {
		return old, nil
	}
	err = os.Rename(old, fresh)
	if err == nil {
		err = os.Rename(dir, old)
	}
	if err != nil {
		return "", fmt.Errorf("keeping the data that was there: %w", err)
	}
	return old, place(fresh)
}

// WaitIdle waits until no member works on the data in dir.
func WaitIdle(ctx context.Context, dir string) error {
	ticker := time.NewTicker(200 * time.Millisecond) // locks tell nobody that they are free
	defer ticker.Stop()
	for {
		err := idle(dir)
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

// idle fails when a member works on the data in dir: it then holds the lock of
// its database.
func idle(dir string) error {
	f, err := os.Open(filepath.Join(dir, "member", "snap", "db"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking whether etcd runs: %w", err)
	}
	defer f.Close()
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("etcd works on %s: stop it first", dir)
	case err != nil:
		return fmt.Errorf("looking whether etcd runs: %w", err)
	}
	return nil
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
