package snapshot

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hyperkube/internal/testing/testetcd"
)

func TestSaveAndRestore(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	data, file := filepath.Join(dir, "etcd"), filepath.Join(out, "one.db")
	m := testetcd.Start(t, testetcd.Config{Dir: data})
	put := func(m *testetcd.Member, value string) int64 {
		t.Helper()
		resp, err := m.Client.Put(t.Context(), "key", value)
		if err != nil {
			t.Fatal(err)
		}
		return resp.Header.Revision
	}
	then := put(m, "old")
	if err := Save(t.Context(), m.Client, file); err != nil {
		t.Fatal(err)
	}
	if err := Save(t.Context(), m.Client, file); err == nil {
		t.Error("a file was overwritten")
	}
	put(m, "new")
	r := RestoreOptions{Snapshot: file, DataDir: data, Name: "default", PeerURL: "http://127.0.0.1:2380", RevisionBump: 1000}
	if _, err := Restore(r); err == nil || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("restored under a running member: %v", err)
	}
	m.Stop()
	if s, err := Read(file); err != nil || s.Revision != then || s.TotalKey != 1 {
		t.Errorf("got %+v, %v", s, err)
	}
	broken := filepath.Join(out, "broken.db")
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 1
	if err := os.WriteFile(broken, content, 0o600); err != nil {
		t.Fatal(err)
	}
	bad := r
	bad.Snapshot = broken
	if _, err := Restore(bad); err == nil {
		t.Error("a broken snapshot was restored")
	}
	testDamaged(t, r, content)
	// Data exists at every instant, so a killed Restore never leaves an empty directory.
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		var err error
		for ctx.Err() == nil && err == nil {
			_, err = os.Stat(data)
		}
		ended <- err
	}()
	for i := range 2 { // Restore can be repeated
		old, err := Restore(r)
		if err != nil {
			t.Fatal(err)
		}
		if want := data + ".before-restore-" + string(rune('1'+i)); old != want {
			t.Errorf("what was there is in %q", old)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	m = testetcd.Start(t, testetcd.Config{Dir: data})
	defer m.Stop()
	got, err := m.Client.Get(t.Context(), "key")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "old" || got.Header.Revision < then+1000 {
		t.Errorf("got %v, %v", got, err)
	}
}

// testDamaged restores and reads snapshots with a missing end or page, with and without checksum.
// They must yield an error, not a panic.
func testDamaged(t *testing.T, r RestoreOptions, content []byte) {
	t.Helper()
	r.Snapshot, r.SkipHashCheck = filepath.Join(t.TempDir(), "damaged.db"), true
	zeroed := slices.Clone(content)
	clear(zeroed[2*4096 : min(8*4096, len(zeroed))]) // all but the first pages of a small database
	for what, data := range map[string][]byte{
		"is empty":              nil,
		"is damaged: it ends":   content[:5*4096],
		"is damaged: assertion": zeroed,
		"is damaged: invalid":   bytes.Repeat([]byte("not a database"), 2000),
	} {
		if err := os.WriteFile(r.Snapshot, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Restore(r); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("restored: %v, want %q", err, what)
		}
		if _, err := Read(r.Snapshot); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("read: %v, want %q", err, what)
		}
	}
	if err := os.Remove(r.Snapshot); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(r.Snapshot); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("read what is not there: %v", err)
	}
}
