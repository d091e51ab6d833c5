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

// adviseBackup and adviseLog are the remedies that errors about damaged data name: adviseBackup if the database is
// unusable, adviseLog if only the write-ahead log is. The server never deletes damaged data itself.
const (
	adviseBackup = "restore a backup (hyperkube snapshot restore FILE); if the cluster has other members, remove this member from it, empty the data directory and join again"
	adviseLog    = "its database may be intact: restore a copy of it with hyperkube snapshot restore --skip-hash-check, or " + adviseBackup
)

// CheckData returns the error with which a member would refuse to start with the data directory dir because its data is
// damaged; nil if it would start. No member may use the directory; the error wraps database.ErrInUse if one does.
func CheckData(dir string) error { return checkDamage(dir) }

// checkDamage returns an error with a remedy if the data directory dir has damage at which etcd would panic without
// an explanation or hang: a missing or damaged database, or, in a single-member cluster, a write-ahead log that is
// missing or ends before the last entry that the database contains (new entries would count as applied already). It
// runs before etcd opens the data, and reads no more than etcd itself reads during startup. An empty or missing data
// directory is not an error.
func checkDamage(dir string) error {
	logDir, file := datadir.ToWALDir(dir), datadir.ToBackendFileName(dir)
	segments, err := filesWithSuffix(logDir, ".wal")
	if err != nil {
		return err
	}
	db, err := inspectDatabase(file)
	if err != nil {
		return err
	}
	if len(segments) == 0 {
		// An interrupted bootstrap that starts again has only written the members.
		if db.Members == 1 && db.Applied > uint64(db.Members) {
			return fmt.Errorf("the write-ahead log in %s is missing, but the database has %d entries of it: %s", logDir, db.Applied, adviseLog)
		}
		return nil
	}
	log, err := inspectLog(segments)
	if err != nil {
		return fmt.Errorf("reading the write-ahead log: %w", err)
	}
	if db.Applied < log.snapshotIndex {
		// etcd installs a database that another member has sent as a snapshot.
		received, err := filesWithSuffix(datadir.ToSnapDir(dir), ".snap.db")
		switch {
		case err != nil:
			return err
		case len(received) == 0 && !db.Exists:
			return fmt.Errorf("the database %s is missing: %s", file, adviseBackup)
		case len(received) == 0:
			return fmt.Errorf("the database %s has %d entries, but the write-ahead log starts after entry %d: %s", file, db.Applied, log.snapshotIndex, adviseBackup)
		}
	}
	// The database of a follower may be ahead of its log, so only a single member is checked.
	if db.Members == 1 && log.lastIndex < db.Applied && log.lastIndex > 0 {
		return fmt.Errorf("the write-ahead log in %s ends at entry %d, but the database has %d: %s", logDir, log.lastIndex, db.Applied, adviseLog)
	}
	return nil
}

// inspectDatabase calls database.Inspect for the database file and adds a remedy to its error: to check the disk if
// it cannot read the file, and otherwise to restore a backup. It returns empty contents and no error if the file does
// not exist.
func inspectDatabase(file string) (database.Contents, error) {
	db, err := database.Inspect(file)
	if err == nil {
		return db, nil
	}
	if errors.Is(err, database.ErrInUse) {
		return db, fmt.Errorf("opening the database %s: %w", file, err)
	}
	// If the disk fails, the database may be intact, and an older backup would lose data.
	if failing := database.ReadError(file); failing != nil {
		return db, fmt.Errorf("the database cannot be read, but may be intact: check the disk, then start again: %w", failing)
	}
	return db, fmt.Errorf("the database %s is damaged: %w: %s", file, err, adviseBackup)
}

// withAdvice adds a remedy to an error with which etcd failed to start, if the cause is a full disk or a damaged
// write-ahead log. dir is the data directory, for the text. It returns other errors unchanged, including other errors
// of the operating system, and nil for nil.
func withAdvice(err error, dir string) error {
	if err == nil {
		return nil
	}
	if IsDiskFull(err) {
		return fmt.Errorf("the disk of %s is full: free space, then start again: %w", dir, err)
	}
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		return err // a disk or permission error; the data may be intact
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

// filesWithSuffix returns the paths of the files in dir whose names end with suffix, sorted. It
// returns none if dir does not exist.
func filesWithSuffix(dir, suffix string) ([]string, error) {
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

// walState is the end of a write-ahead log, read before etcd opens it.
type walState struct {
	// lastIndex is the index of the last entry or the last snapshot, whichever is greater.
	// snapshotIndex is the index of the last snapshot. They are zero if there is none.
	lastIndex, snapshotIndex uint64
}

// inspectLog returns the index of the last entry and of the last snapshot of a write-ahead log from its segment
// files, in order. To be fast, it begins with the newest segment, stops when it has found both, and decodes only the
// last entry and the last snapshot of a segment.
func inspectLog(segments []string) (out walState, err error) {
	for _, file := range slices.Backward(segments) {
		here, err := inspectSegment(file)
		if err != nil {
			return out, err
		}
		out.lastIndex, out.snapshotIndex = max(out.lastIndex, here.lastIndex), max(out.snapshotIndex, here.snapshotIndex)
		if out.lastIndex > 0 && out.snapshotIndex > 0 {
			break
		}
	}
	return out, nil
}

// frame is the position of one record in a segment file, in bytes.
type frame struct{ offset, size int64 }

// inspectSegment returns the indexes of the last entry and the last snapshot in one segment file. It ends at the
// first record that is not complete or not written yet. If the last record of a kind cannot be decoded, it uses the
// one before.
func inspectSegment(file string) (out walState, err error) {
	f, err := os.Open(file)
	if err != nil {
		return out, err
	}
	defer f.Close()
	stat, err := f.Stat()
	if err != nil {
		return out, err
	}
	// The last frame may be incomplete, so the ones before are remembered.
	var entry, entryBefore, snapshot, snapshotBefore frame
	var head [10]byte
	for offset := int64(0); ; {
		if _, err := f.ReadAt(head[:], offset); err != nil {
			break // end of file, or less than a header
		}
		size := int64(binary.LittleEndian.Uint64(head[:]))
		if size == 0 {
			break // preallocated, not written
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
	if out.snapshotIndex = indexAt(f, snapshot); out.snapshotIndex == 0 {
		out.snapshotIndex = indexAt(f, snapshotBefore)
	}
	if out.lastIndex = indexAt(f, entry); out.lastIndex == 0 {
		out.lastIndex = indexAt(f, entryBefore)
	}
	out.lastIndex = max(out.lastIndex, out.snapshotIndex)
	return out, nil
}

// indexAt returns the raft index of the entry or snapshot at a position of a segment file. It returns zero if the
// record cannot be read or decoded, and for the zero frame.
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
