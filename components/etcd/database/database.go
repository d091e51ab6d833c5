// Package database looks at the file that an etcd member keeps its keys in, or at
// a snapshot of it, without an etcd, which panics at what is damaged.
package database

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

// Contents is what is known of a database before etcd has it.
type Contents struct {
	// Exists is false when there is no file, or an empty one.
	Exists bool
	// Applied is how much of the write-ahead log is in it: an index.
	Applied uint64
	// Members is how many the cluster has.
	Members int
}

// Look goes through every key of the database in file, as etcd does when it
// opens it, but where a panic can be caught. Nobody else may have it open for
// writing. Changes within values are not seen: they have no checksums.
func Look(file string) (out Contents, err error) {
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
	out.Exists = true
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
				out.Applied = binary.BigEndian.Uint64(value)
			}
		}
		if members := tx.Bucket(schema.Members.Name()); members != nil {
			return members.ForEach(func(_, _ []byte) error {
				out.Members++
				return nil
			})
		}
		return nil
	})
	return out, err
}

// Unreadable is the error, if any, of reading a file to its end: what Look finds
// may then be the disk's fault.
func Unreadable(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(io.Discard, f)
	return err
}
