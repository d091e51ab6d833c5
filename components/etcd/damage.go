package etcd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"hyperkube/components/etcd/database"
)

// What to do about data that cannot be used. Nothing of it is ever taken away
// by itself.
const (
	adviseBackup = "restore a backup (hyperkube snapshot restore FILE); a member of several is removed from its cluster, its directory emptied, and joins again"
	adviseLog    = "its database may be whole: give a copy of it to hyperkube snapshot restore --skip-hash-check, or " + adviseBackup
)

// checkDamage looks at the data of a member before etcd does, for what etcd
// panics at without a word of help, or waits for ever because of: a log that
// ends before what the database has, so that what is written next would count
// as applied already; a database that is gone or in pieces.
//
// It reads no more than etcd itself is about to read.
func checkDamage(dir string) error {
	logDir, file := datadir.ToWALDir(dir), datadir.ToBackendFileName(dir)
	segments, err := filesOf(logDir, ".wal")
	if err != nil {
		return err
	}
	db, err := lookAtDatabase(file)
	if err != nil {
		return err
	}
	if len(segments) == 0 {
		// A first start that is begun again has written its members only.
		if db.Members == 1 && db.Applied > uint64(db.Members) {
			return fmt.Errorf("the write-ahead log in %s is gone, but the database has %d entries of it: %s", logDir, db.Applied, adviseLog)
		}
		return nil
	}
	log, err := lookAtLog(segments)
	if err != nil {
		return fmt.Errorf("reading the write-ahead log: %w", err)
	}
	if db.Applied < log.snapshot {
		// A database that another member has sent is put in place by etcd.
		received, err := filesOf(datadir.ToSnapDir(dir), ".snap.db")
		switch {
		case err != nil:
			return err
		case len(received) == 0 && !db.Exists:
			return fmt.Errorf("the database %s is gone: %s", file, adviseBackup)
		case len(received) == 0:
			return fmt.Errorf("the database %s has %d entries, older than the %d that the write-ahead log begins after: %s", file, db.Applied, log.snapshot, adviseBackup)
		}
	}
	// A follower may have in its database what the others have not yet been
	// told that it has in its log.
	if db.Members == 1 && log.last < db.Applied && log.last > 0 {
		return fmt.Errorf("the write-ahead log in %s ends at entry %d, but the database has %d: %s", logDir, log.last, db.Applied, adviseLog)
	}
	return nil
}

// lookAtDatabase is database.Look with what to do about an error.
func lookAtDatabase(file string) (database.Contents, error) {
	db, err := database.Look(file)
	if err == nil {
		return db, nil
	}
	// A backup older than what is whole behind a failing disk is no help.
	if failing := database.Unreadable(file); failing != nil {
		return db, fmt.Errorf("the database cannot be read, though it may be whole: see to the disk, then start again: %w", failing)
	}
	return db, fmt.Errorf("the database %s is damaged: %w: %s", file, err, adviseBackup)
}

// explain adds to an error of etcd's, whose data is in dir, what to do about it.
func explain(err error, dir string) error {
	if err == nil {
		return nil
	}
	if isFull(err) {
		return fmt.Errorf("the disk of %s is full: make space there, then start again: %w", dir, err)
	}
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		return err // the disk or its permissions; what is there may be whole
	}
	for _, damage := range []error{
		wal.ErrCRCMismatch, io.ErrUnexpectedEOF, wal.ErrFileNotFound, wal.ErrMetadataConflict,
		wal.ErrSnapshotMismatch, wal.ErrSnapshotNotFound, wal.ErrSliceOutOfRange,
	} {
		if errors.Is(err, damage) {
			return fmt.Errorf("the write-ahead log is damaged: %w: %s", err, adviseLog)
		}
	}
	text := err.Error()
	for _, damage := range []string{"crc mismatch", "proto:", "unexpected block type", "failed to read WAL"} {
		if strings.Contains(text, damage) {
			return fmt.Errorf("the write-ahead log is damaged: %w: %s", err, adviseLog)
		}
	}
	return err
}

// filesOf are the files in dir whose names end with suffix, in order; none when
// there is no dir.
func filesOf(dir, suffix string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), suffix) {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out, nil
}

// logged is what is known of a write-ahead log before etcd has it.
type logged struct {
	// last is the index of the last entry, or of the last snapshot if that is
	// greater, and snapshot that of the last snapshot; zero without any.
	last, snapshot uint64
}

// lookAtLog goes from frame to frame and decodes nothing but the last ones.
// Segments that it need not look at it does not open.
func lookAtLog(segments []string) (out logged, err error) {
	for _, file := range slices.Backward(segments) {
		here, err := lookAtSegment(file)
		if err != nil {
			return out, err
		}
		out.last, out.snapshot = max(out.last, here.last), max(out.snapshot, here.snapshot)
		if out.last > 0 && out.snapshot > 0 {
			break
		}
	}
	return out, nil
}

// frame is where one record of a log is.
type frame struct{ offset, size int64 }

func lookAtSegment(file string) (out logged, err error) {
	f, err := os.Open(file)
	if err != nil {
		return out, err
	}
	defer f.Close()
	stat, err := f.Stat()
	if err != nil {
		return out, err
	}
	// The very last frame may be one that was not written to its end.
	var entry, entryBefore, snapshot, snapshotBefore frame
	var head [10]byte
	for offset := int64(0); ; {
		if _, err := f.ReadAt(head[:], offset); err != nil {
			break // the end, or close enough
		}
		size := int64(binary.LittleEndian.Uint64(head[:]))
		if size == 0 {
			break // allocated, not yet written
		}
		padding := int64(0)
		if size < 0 {
			padding = int64(uint64(size)>>56) & 7
			size &= 1<<56 - 1
		}
		if size > stat.Size()-offset-8 {
			break
		}
		if head[8] == 8 { // a record begins with its type
			switch at := (frame{offset + 8, size}); int64(head[9]) {
			case wal.EntryType:
				entryBefore, entry = entry, at
			case wal.SnapshotType:
				snapshotBefore, snapshot = snapshot, at
			}
		}
		offset += 8 + size + padding
	}
	if out.snapshot = indexAt(f, snapshot); out.snapshot == 0 {
		out.snapshot = indexAt(f, snapshotBefore)
	}
	if out.last = indexAt(f, entry); out.last == 0 {
		out.last = indexAt(f, entryBefore)
	}
	out.last = max(out.last, out.snapshot)
	return out, nil
}

// indexAt reads the index of an entry or a snapshot; zero if there is none.
func indexAt(f *os.File, at frame) uint64 {
	data := make([]byte, at.size)
	if _, err := f.ReadAt(data, at.offset); err != nil {
		return 0
	}
	var record walpb.Record
	if proto.Unmarshal(data, &record) != nil {
		return 0
	}
	if record.GetType() == wal.SnapshotType {
		var s walpb.Snapshot
		if proto.Unmarshal(record.GetData(), &s) != nil {
			return 0
		}
		return s.GetIndex()
	}
	var e raftpb.Entry
	if proto.Unmarshal(record.GetData(), &e) != nil {
		return 0
	}
	return e.GetIndex()
}
