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

// firstSegment is the file in which a write-ahead log begins.
const firstSegment = "0000000000000000-0000000000000000.wal"

// clearUnborn takes away what a first start has left that ended before its
// first words were in the write-ahead log. etcd would take that for a member
// that knows its cluster, and wait for ever for a leader: the log says who it
// is, but not yet that it is a member. Nothing can have been acknowledged, not
// even a vote, so that it may start anew.
//
// A database that knows more than the log is not touched; the log has been
// lost then, which is an error.
func clearUnborn(dir string, members int) error {
	logDir := datadir.ToWALDir(dir)
	entries, err := os.ReadDir(logDir)
	if errors.Is(err, os.ErrNotExist) {
		return clearUnwritten(dir)
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
	db, err := lookAtDatabase(datadir.ToBackendFileName(dir))
	if err != nil {
		return err
	}
	// What adds the members is applied while it is written.
	if db.Applied > uint64(members) {
		return fmt.Errorf("%s is empty, but the database has %d entries of it: %s", logDir, db.Applied, adviseLog)
	}
	// etcd removes a log of that name itself, should this end here.
	unborn := logDir + ".tmp"
	if err := os.RemoveAll(unborn); err != nil {
		return err
	}
	if err := os.Rename(logDir, unborn); err != nil {
		return err
	}
	if err := os.RemoveAll(datadir.ToSnapDir(dir)); err != nil {
		return err
	}
	return os.RemoveAll(unborn)
}

// bornPages are what a database is begun with, in one write.
const bornPages = 4

// clearUnwritten takes away a database that was cut short when it was begun, for the disk
// was full: nothing is in it, and there is no log. etcd would take it for a damaged one.
func clearUnwritten(dir string) error {
	file := datadir.ToBackendFileName(dir)
	info, err := os.Stat(file)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() >= bornPages*int64(os.Getpagesize()) {
		return nil
	}
	if err != nil {
		return err
	}
	snapshots, err := filesOf(datadir.ToSnapDir(dir), ".snap")
	if err != nil || len(snapshots) > 0 {
		return err
	}
	return os.Remove(file)
}

// isEmptyLog tells whether a log begins with file and has no state of raft.
// One that cannot be read is etcd's matter.
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
