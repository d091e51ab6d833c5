package etcd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// What to do about data that cannot be used. Nothing of it is ever taken away
// by itself.
const (
	adviseBackup = "restore a backup (hyperkube snapshot restore FILE); a member of several is removed from its cluster, its folder emptied, and joins again"
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
		// A backup older than what is whole behind a failing disk is no help.
		if failing := unreadable(file); failing != nil {
			return fmt.Errorf("the database cannot be read, though it may be whole: see to the disk, then start again: %w", failing)
		}
		return fmt.Errorf("the database %s is damaged: %w: %s", file, err, adviseBackup)
	}
	if len(segments) == 0 {
		// A first start that is begun again has written its members only.
		if db.members == 1 && db.applied > uint64(db.members) {
			return fmt.Errorf("the write-ahead log in %s is gone, but the database has %d entries of it: %s", logDir, db.applied, adviseLog)
		}
		return nil
	}
	log, err := lookAtLog(segments)
	if err != nil {
		return fmt.Errorf("reading the write-ahead log: %w", err)
	}
	if db.applied < log.snapshot {
		// A database that another member has sent is put in place by etcd.
		received, err := filesOf(datadir.ToSnapDir(dir), ".snap.db")
		switch {
		case err != nil:
			return err
		case len(received) == 0 && !db.exists:
			return fmt.Errorf("the database %s is gone: %s", file, adviseBackup)
		case len(received) == 0:
			return fmt.Errorf("the database %s has %d entries, older than the %d that the write-ahead log begins after: %s", file, db.applied, log.snapshot, adviseBackup)
		}
	}
	// A follower may have in its database what the others have not yet been
	// told that it has in its log.
	if db.members == 1 && log.last < db.applied && log.last > 0 {
		return fmt.Errorf("the write-ahead log in %s ends at entry %d, but the database has %d: %s", logDir, log.last, db.applied, adviseLog)
	}
	return nil
}

// explain adds to an error of etcd's what to do about it.
func explain(err error) error {
	if err == nil {
		return nil
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

// database is what is known of one before etcd has it.
type database struct {
	exists bool
	// applied is how much of the log is in it.
	applied uint64
	members int
}

// lookAtDatabase goes through every page of a database that is in use, as etcd
// does when it opens it, but where a panic can be caught.
func lookAtDatabase(file string) (out database, err error) {
	if stat, err := os.Stat(file); errors.Is(err, os.ErrNotExist) || err == nil && stat.Size() == 0 {
		return out, nil
	}
	// What a mapped file lacks, because it ends too early or the disk cannot
	// read it, is a fault of memory, which ends a process unless asked not to.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		problem := recover()
		if _, fault := problem.(interface{ Addr() uintptr }); fault {
			err = errors.New("part of it is not there")
		} else if problem != nil {
			err = fmt.Errorf("%v", problem)
		}
	}()
	out.exists = true
	db, err := bolt.Open(file, 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Second})
	if errors.Is(err, bolt.ErrTimeout) {
		return out, errors.New("another process works on it")
	}
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	stat, err := os.Stat(file)
	if err != nil {
		return out, err
	}
	err = db.View(func(tx *bolt.Tx) error {
		if stat.Size() < tx.Size() {
			return fmt.Errorf("it ends after %d of %d bytes", stat.Size(), tx.Size())
		}
		err := tx.ForEach(func(name []byte, bucket *bolt.Bucket) error {
			var before []byte
			return bucket.ForEach(func(key, _ []byte) error {
				if before != nil && bytes.Compare(key, before) <= 0 {
					return fmt.Errorf("keys of %q are out of order", name)
				}
				before = key
				return nil
			})
		})
		if err != nil {
			return err
		}
		if meta := tx.Bucket(schema.Meta.Name()); meta != nil {
			if value := meta.Get(schema.MetaConsistentIndexKeyName); len(value) == 8 {
				out.applied = binary.BigEndian.Uint64(value)
			}
		}
		if members := tx.Bucket(schema.Members.Name()); members != nil {
			return members.ForEach(func(_, _ []byte) error {
				out.members++
				return nil
			})
		}
		return nil
	})
	return out, err
}

// unreadable is the error, if any, of reading a file to its end.
func unreadable(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(io.Discard, f)
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
