package store

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"hyperkube/components/logging/record"
)

var quiet = slog.New(slog.DiscardHandler)

// FuzzSegment opens stores with an arbitrary segment, searches and continues them.
func FuzzSegment(f *testing.F) {
	dir := f.TempDir()
	s := open(f, Config{Dir: dir})
	s.Append(&record.Source{Namespace: "n"}, record.Record{Time: 1, Text: []byte("text")})
	s.Advance("k", record.Position{Offset: 3})
	if err := s.Close(); err != nil {
		f.Fatal(err)
	}
	name := "00000000000000000000" + extension
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		// The checksums would hide the decoders from the fuzzer.
		if h, rest, err := decodeHeader(data, true); err == nil && h.rawLen < 1<<20 {
			collect(&Query{}, rest, make([]*record.Source, 0), 0, nil)
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
		s := open(t, Config{Dir: dir, Log: quiet})
		if _, err := s.Search(t.Context(), Query{}, func(Entry) bool { return true }); err != nil {
			t.Log(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
