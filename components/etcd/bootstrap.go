package etcd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
)

// firstSegment is the file name of the first segment of an etcd member's write-ahead log.
const firstSegment = "0000000000000000-0000000000000000.wal"

// clearPartialBootstrap removes the data of a member's first start if that was interrupted before the first raft
// state was in the write-ahead log. etcd would treat the data as a member of an existing cluster and wait for a
// leader forever, because the log contains the member's identity but not its membership. Nothing, not even a vote,
// was acknowledged, so etcd may start from the beginning. dir is the data directory, members the number of members in
// the initial cluster.
//
// It changes nothing and returns nil if the log contains raft state or more than one segment. Without a log, it
// removes only an incomplete database file (see clearPartialDatabase). If the database contains more entries than a
// bootstrap writes, the log was lost: that is an error, and the data is not changed.
func clearPartialBootstrap(dir string, members int) error {
	logDir := datadir.ToWALDir(dir)
	entries, err := os.ReadDir(logDir)
	if errors.Is(err, os.ErrNotExist) {
		return clearPartialDatabase(dir)
	}
	if err != nil {
		return err
	}
	segments := 0
	for _, e := range entries {
		if filepath.Ext(e.Name()) == ".wal" {
			segments++
		}
	}
	first := filepath.Join(logDir, firstSegment)
	if segments != 1 || !fileutil.Exist(first) {
		return nil
	}
	if empty, err := isEmptyLog(first); !empty || err != nil {
		return err
	}
	db, err := inspectDatabase(datadir.ToBackendFileName(dir))
	if err != nil {
		return err
	}
	// The entries that add the members may have been applied already.
	if db.Applied > uint64(members) {
		return fmt.Errorf("%s is empty, but the database has %d entries of it: %s", logDir, db.Applied, adviseLog)
	}
	// etcd removes a log with that name itself, if this is interrupted here.
	partial := logDir + ".tmp"
	if err := os.RemoveAll(partial); err != nil {
		return err
	}
	if err := os.Rename(logDir, partial); err != nil {
		return err
	}
	if err := os.RemoveAll(datadir.ToSnapDir(dir)); err != nil {
		return err
	}
	return os.RemoveAll(partial)
}

// initialPages is the number of pages that bbolt, the database library of etcd, writes first when
// it creates a file.
const initialPages = 4

// clearPartialDatabase removes the database file of a data directory without a log if its creation was interrupted by
// a full disk. Such a file is smaller than initialPages and contains no data, but etcd would treat it as damaged. It
// changes nothing if there is no file, if the file is larger, or if there are snapshots of the log.
func clearPartialDatabase(dir string) error {
	file := datadir.ToBackendFileName(dir)
	info, err := os.Stat(file)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() >= initialPages*int64(os.Getpagesize()) {
		return nil
	}
	if err != nil {
		return err
	}
	snapshots, err := filesWithSuffix(datadir.ToSnapDir(dir), ".snap")
	if err != nil || len(snapshots) > 0 {
		return err
	}
	return os.Remove(file)
}

// isEmptyLog reports whether the segment file, the first one of a write-ahead log, contains no raft state (term, vote
// or commit index). It returns false without an error if a record cannot be decoded; etcd reports that error when it
// reads the log.
func isEmptyLog(file string) (bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return false, err
	}
	defer f.Close()
	decoder := wal.NewDecoder(fileutil.NewFileReader(f))
	for {
		var record walpb.Record
		switch err := decoder.Decode(&record); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return true, nil
		case err != nil:
			return false, nil
		}
		switch record.GetType() {
		case wal.StateType:
			return false, nil
		case wal.CrcType:
			decoder.UpdateCRC(record.GetCrc())
		}
	}
}
