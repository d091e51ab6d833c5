package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"hyperkube/internal/testing/testdisk"
)

func openStore(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// addLayer creates a layer that no image uses.
func addLayer(t *testing.T, s *Store, name string) {
	t.Helper()
	if err := s.layers.create(t.Context(), name, false, func(dir string) error { return os.Mkdir(filepath.Join(dir, "x"), 0o755) }); err != nil {
		t.Fatal(err)
	}
}

// TestCollect checks that used is called only when nothing is being created, and that a skipped
// collection happens later.
func TestCollect(t *testing.T) {
	s := openStore(t, t.TempDir())
	addLayer(t, s, "used")
	addLayer(t, s, "unused")
	asked := 0
	used := func() func(string) bool {
		asked++
		return func(layer string) bool { return layer == "used" }
	}
	over := s.Hold()
	if err := s.Collect(used); err != nil || asked != 0 || !s.layers.has("unused") {
		t.Errorf("collected while a container was made: asked %d times, %v", asked, err)
	}
	over()
	if err := s.CollectPending(used); err != nil || asked != 1 || s.layers.has("unused") || !s.layers.has("used") {
		t.Errorf("asked %d times, %v", asked, err)
	}
	if err := s.CollectPending(used); err != nil || asked != 1 {
		t.Errorf("asked %d times though there was nothing left, %v", asked, err)
	}
}

// TestCollectOfBefore checks that leftovers of failed pulls of a previous process are removed.
func TestCollectOfBefore(t *testing.T) {
	dir := t.TempDir()
	addLayer(t, openStore(t, dir), "unused")
	s := openStore(t, dir)
	if err := s.CollectPending(none); err != nil || s.layers.has("unused") {
		t.Errorf("there still, %v", err)
	}
}

// TestArchiveFillsDisk checks that an archive that does not fit on the disk is rejected before the
// disk is full.
func TestArchiveFillsDisk(t *testing.T) {
	s := openStore(t, testdisk.New(t).Path)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	w := tar.NewWriter(z)
	const size = 64 << 20
	err := w.WriteHeader(&tar.Header{Name: "blob", Typeflag: tar.TypeReg, Size: size, Mode: 0o600})
	if err == nil {
		_, err = io.CopyN(w, zeros{}, size)
	}
	if err := errors.Join(err, w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Import(t.Context(), &packed); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "not enough disk space") {
		t.Error(err)
	}
	if left, err := os.ReadDir(s.path("tmp")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// silence is a body that returns one byte and then blocks until ctx is cancelled.
type silence struct {
	ctx  context.Context
	sent bool
}

func (s *silence) Read(p []byte) (int, error) {
	if !s.sent {
		s.sent = true
		return 1, nil
	}
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

func (s *silence) Close() error { return nil }

// TestStall checks that a stalled response is cancelled, and that a response which is read slowly
// is not.
func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		body := &guardedBody{ReadCloser: &silence{ctx: ctx}, left: 100, timer: time.AfterFunc(stallTimeout, func() { cancel(errStalled) })}
		body.timer.Stop()
		if _, err := body.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * stallTimeout) // emulates slow unpacking
		if ctx.Err() != nil {
			t.Fatal("given up while it was not asked")
		}
		if _, err := body.Read(make([]byte, 1)); err == nil || !errors.Is(context.Cause(ctx), errStalled) {
			t.Error("silence is waited for:", err)
		}
	})
}

// TestWhiteouts checks that a whiteout hides files of lower layers, but not files of the same layer,
// in any order.
func TestWhiteouts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, h := range []tar.Header{
		{Name: "before/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "before/own", Typeflag: tar.TypeReg, Mode: 0o600},
		{Name: ".wh.before", Typeflag: tar.TypeReg},
		{Name: ".wh.after", Typeflag: tar.TypeReg},
		{Name: "after/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "file", Typeflag: tar.TypeReg, Mode: 0o600},
		{Name: ".wh.file", Typeflag: tar.TypeReg},
		{Name: ".wh.gone", Typeflag: tar.TypeReg},
		{Name: "plain/", Typeflag: tar.TypeDir, Mode: 0o755},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := unpack(t.Context(), dir, &layer); err != nil {
		if errors.Is(err, unix.ENOTSUP) {
			t.Skip("this file system has no such attributes:", err)
		}
		t.Fatal(err)
	}
	for name, want := range map[string]uint32{
		"before": unix.S_IFDIR, "before/own": unix.S_IFREG, "after": unix.S_IFDIR, "file": unix.S_IFREG, "gone": unix.S_IFCHR, "plain": unix.S_IFDIR,
	} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, name), &st); err != nil || st.Mode&unix.S_IFMT != want {
			t.Errorf("%s: kind %o, want %o: %v", name, st.Mode&unix.S_IFMT, want, err)
		}
	}
	for name, want := range map[string]bool{"before": true, "after": true, "plain": false} {
		_, err := unix.Lgetxattr(filepath.Join(dir, name), opaqueAttr, make([]byte, 8))
		if (err == nil) != want {
			t.Errorf("%s hides what is below: %t, want %t", name, err == nil, want)
		}
	}
}

// TestHardLinks checks that a hard link can refer to a file in the root directory of the layer and in
// another directory.
func TestHardLinks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	layer := tarOf(regular("top"), hardLink("sub/a", "top"), hardLink("b", "/top"), hardLink("c", "sub/a"), symlink("l", "top"), hardLink("d", "l"))
	if err := unpack(t.Context(), dir, bytes.NewReader(layer)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"top", "sub/a", "b", "c"} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, name), &st); err != nil || st.Nlink != 4 || st.Size != 3 {
			t.Errorf("%s: %d links, %d bytes, %v", name, st.Nlink, st.Size, err)
		}
	}
	if target, err := os.Readlink(filepath.Join(dir, "d")); err != nil || target != "top" {
		t.Errorf("the hard link to a symlink: %q, %v", target, err)
	}
}
