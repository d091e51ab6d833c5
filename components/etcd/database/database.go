// Package database inspects the database file of an etcd member, or a snapshot of it, without etcd,
// which panics on damaged files.
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

// Contents describes a database file. Inspect reads it before etcd opens the file.
type Contents struct {
	// Exists is false if the file does not exist or is empty.
	Exists bool
	// Applied is the index of the last raft entry that the database contains.
	Applied uint64
	// Members is the number of members of the cluster.
	Members int
	// ClusterVersion is the version of etcd that all members of the cluster had, such as "3.6.0"; "" if unknown.
	ClusterVersion string
}

// ErrInUse is the error of Inspect if another process has opened the file for writing.
var ErrInUse = errors.New("the file is in use by another process")

// Inspect iterates over every key of the database in file, as etcd does when it opens the file, and returns what it
// contains. It returns zero Contents and no error if the file does not exist or is empty. It returns an error if the
// file is damaged, where etcd would panic, or ErrInUse if another process has it open for writing. Changes within values are
// not detected, because values have no checksums.
func Inspect(file string) (out Contents, err error) {
	if stat, err := os.Stat(file); errors.Is(err, os.ErrNotExist) || err == nil && stat.Size() == 0 {
		return out, nil
	}
	// If the mapped file is truncated or the disk cannot read it, memory access faults. A fault
	// terminates the process unless SetPanicOnFault is set.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		problem := recover()
		if _, fault := problem.(interface{ Addr() uintptr }); fault {
			err = errors.New("part of the file is missing or unreadable")
		} else if problem != nil {
			err = fmt.Errorf("%v", problem)
		}
	}()
	out.Exists = true
	db, err := bolt.Open(file, 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Second})
	if errors.Is(err, bolt.ErrTimeout) {
		return out, ErrInUse
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
		if cluster := tx.Bucket(schema.Cluster.Name()); cluster != nil {
			out.ClusterVersion = string(cluster.Get(schema.ClusterClusterVersionKeyName))
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

// ReadError reads a file to its end and returns the first error of opening or reading it, or nil. An error means that
// an error of Inspect may be caused by the disk and not by damaged data.
func ReadError(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(io.Discard, f)
	return err
}
