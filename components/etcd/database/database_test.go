package database

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// TestLook checks that a damaged database yields an error that names the damage, and never a panic.
func TestLook(t *testing.T) {
	file := filepath.Join(t.TempDir(), "db")
	db, err := bolt.Open(file, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		bucket, err := tx.CreateBucket([]byte("key"))
		for i := 0; err == nil && i < 500; i++ {
			err = bucket.Put(fmt.Appendf(nil, "key-%03d", i), bytes.Repeat([]byte("v"), 100))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		data []byte
		want string // empty: the database is intact
	}{
		"whole":             {whole, ""},
		"end is missing":    {whole[:len(whole)/2], "it ends after"},
		"keys out of order": {bytes.Replace(whole, []byte("key-250"), []byte("key-950"), -1), "keys of \"key\" are out of order"},
		"no database":       {bytes.Repeat([]byte("x"), 40960), "invalid database"},
	} {
		if err := os.WriteFile(file, c.data, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := Inspect(file)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || err == nil && !got.Exists {
			t.Errorf("%s: %+v, %v, want %q", name, got, err, c.want)
		}
		if err := ReadError(file); err != nil {
			t.Errorf("%s cannot be read: %v", name, err)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if got, err := Inspect(file); err != nil || got.Exists {
		t.Errorf("no file: %+v, %v", got, err)
	}
	if err := ReadError(file); err == nil {
		t.Error("what is not there can be read")
	}
}
