package etcd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// aloneAnywhere returns the configuration of a single member on random ports. Only this process
// connects to it.
func aloneAnywhere(dir string) Config {
	return Config{
		DataDir: dir, SnapshotCount: 100,
		ListenClientURLs: []string{"http://127.0.0.1:0"}, ListenPeerURLs: []string{"http://127.0.0.1:0"},
	}
}

// TestDamage checks that damaged or missing data is reported with advice before anything is
// written, and that files which are not needed may be missing.
func TestDamage(t *testing.T) {
	const keys = 350
	whole := filepath.Join(t.TempDir(), "data")
	s, stop := start(t, aloneAnywhere(whole))
	for i := range keys {
		if _, err := s.Client().Put(context.Background(), fmt.Sprintf("k%03d", i), strings.Repeat("v", 200)); err != nil {
			t.Fatal(err)
		}
	}
	stop()

	var (
		log  = filepath.Join("member", "wal", firstSegment)
		db   = filepath.Join("member", "snap", "db")
		snap = filepath.Join("member", "snap", "*.snap")
	)
	written, err := os.ReadFile(filepath.Join(whole, log))
	if err != nil {
		t.Fatal(err)
	}
	end := int64(len(bytes.TrimRight(written, "\x00")))
	// The change is within values, where only the checksum reveals it.
	value := bytes.Repeat([]byte("v"), 100)
	midst, last := end/2+int64(bytes.Index(written[end/2:], value)), int64(bytes.LastIndex(written, value))
	for name, c := range map[string]struct {
		damage func(dir string) error
		// want is contained in the error. If empty, the member starts and has all keys.
		want string
	}{
		"nothing":                  {func(string) error { return nil }, ""},
		"log tail truncated":       {cut(log, end-3000), "but the database has"},
		"log half truncated":       {cut(log, end/2), "but the database has"},
		"log tail zeroed":          {overwrite(log, end-3000, make([]byte, 3000)), "but the database has"},
		"log end corrupted":        {overwrite(log, last, []byte("wrong")), "the write-ahead log is damaged"},
		"log middle corrupted":     {overwrite(log, midst, []byte("wrong")), "the write-ahead log is damaged"},
		"log missing":              {remove(log), "is missing, but the database has"},
		"log directory missing":    {remove(filepath.Dir(log)), "is missing, but the database has"},
		"snapshots missing":        {remove(snap), ""},
		"database missing":         {remove(db), "is missing: restore a backup"},
		"database truncated":       {cut(db, 6*4096), "is damaged: it ends after 24576 of "},
		"database empty":           {cut(db, 0), "is missing: restore a backup"},
		"database head corrupted":  {overwrite(db, 0, bytes.Repeat([]byte("wrong"), 2000)), "is damaged"},
		"database pages corrupted": {overwrite(db, 3*4096, bytes.Repeat([]byte("wrong"), 6*4096/5)), "is damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			if err := os.CopyFS(dir, os.DirFS(whole)); err != nil {
				t.Fatal(err)
			}
			if err := c.damage(dir); err != nil {
				t.Fatal(err)
			}
			if c.want != "" {
				s, err := New(aloneAnywhere(dir))
				if err != nil {
					t.Fatal(err)
				}
				err = s.Run(t.Context())
				if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "hyperkube snapshot restore") {
					t.Errorf("%v, want %q", err, c.want)
				}
				return
			}
			s, stop := start(t, aloneAnywhere(dir))
			defer stop()
			for i := range keys {
				key := fmt.Sprintf("k%03d", i)
				if got, err := s.Client().Get(t.Context(), key); err != nil || len(got.Kvs) != 1 {
					t.Fatalf("%s is lost: %v", key, err)
				}
			}
		})
	}
}

func cut(file string, size int64) func(string) error {
	return func(dir string) error { return os.Truncate(filepath.Join(dir, file), size) }
}

func overwrite(file string, at int64, with []byte) func(string) error {
	return func(dir string) error {
		f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteAt(with, at)
		return err
	}
}

func remove(patterns ...string) func(string) error {
	return func(dir string) error {
		for _, pattern := range patterns {
			files, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				return err
			}
			for _, f := range files {
				if err := os.RemoveAll(f); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// FuzzLog checks that a log with any content is read without a panic, and that impossible values
// are rejected.
func FuzzLog(f *testing.F) {
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0}, 64))
	// An entry with index 7 in 14 bytes, without a checksum.
	f.Add([]byte{8, 0, 0, 0, 0, 0, 0, 0, 8, 2, 16, 0, 26, 2, 24, 7})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 8, 2})
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0x87, 8, 2, 0, 0})
	f.Fuzz(func(t *testing.T, content []byte) {
		file := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := inspectSegment(file); err != nil {
			t.Error(err)
		}
	})
}
