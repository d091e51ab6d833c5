//go:build cgo

package runtime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type testRecord struct{ N int }

func TestRecordLines(t *testing.T) {
	for _, test := range []struct {
		name, file string
		want       int // 0: damaged
	}{
		{"of one line, as they were once", `{"N":1}`, 1},
		{"the last counts", "\n{\"N\":1}\n\n{\"N\":2}\n", 2},
		{"the last was cut short", "\n{\"N\":1}\n\n{\"N\":2", 1},
		{"one between was cut short", "\n{\"N\":1}\n\n{\"N\":\n{\"N\":3}\n", 3},
		{"a block that the disk never got", "\n{\"N\":1}\n\x00\x00\x00\x00", 1},
		{"nothing whole", "\n{\"N\":", 0},
		{"empty", "", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, recordFile), []byte(test.file), 0o600); err != nil {
				t.Fatal(err)
			}
			var got testRecord
			err := loadRecord(dir, &got)
			if test.want == 0 != errors.Is(err, errDamaged) || got.N != test.want {
				t.Errorf("read %d, %v; want %d", got.N, err, test.want)
			}
			// The next record can be read after any content.
			if err := save(dir, testRecord{9}); err != nil {
				t.Fatal(err)
			}
			if err := loadRecord(dir, &got); err != nil || got.N != 9 {
				t.Errorf("read %d, %v after another was written", got.N, err)
			}
		})
	}
}

// TestRecordStaysSmall changes one record many times and checks the file size.
func TestRecordStaysSmall(t *testing.T) {
	dir := t.TempDir()
	text := strings.Repeat("x", 1000)
	for i := range 100 {
		if err := save(dir, fmt.Sprint(text, i)); err != nil {
			t.Fatal(err)
		}
		var got string
		if err := loadRecord(dir, &got); err != nil || got != fmt.Sprint(text, i) {
			t.Fatalf("read %q, %v", got, err)
		}
	}
	info, err := os.Stat(filepath.Join(dir, recordFile))
	if err != nil || info.Size() > maxRecordFileSize+2000 {
		t.Errorf("the file has %d bytes, %v", info.Size(), err)
	}
	if err := save(filepath.Join(dir, "gone"), 1); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a record without directory: %v", err)
	}
}
