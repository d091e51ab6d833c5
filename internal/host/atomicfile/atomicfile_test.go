package atomicfile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hyperkube/internal/testing/testdisk"
)

// TestFullDisk checks that a file that does not fit keeps its content, that the error names the file
// and not the temporary file, and that no temporary file remains.
func TestFullDisk(t *testing.T) {
	disk := testdisk.New(t)
	paths := []string{filepath.Join(disk.Path, "first"), filepath.Join(disk.Path, "second")}
	write := func(version int) error {
		var files []File
		for _, path := range paths {
			files = append(files, File{Path: path, Data: []byte(fmt.Sprintln(version, strings.Repeat("x", 10<<10))), Mode: 0o600})
		}
		return Write(files...)
	}
	content := func() (out string) {
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			out += string(data)
		}
		return out
	}
	if err := write(-1); err != nil {
		t.Fatal(err)
	}
	old := content()
	messages := map[string]bool{}
	disk.FailEach(func(attempt int) error {
		err := write(attempt)
		if err == nil {
			old = content()
		}
		return err
	}, func(err error) {
		messages[err.Error()] = true
		if content() != old {
			t.Error("a failed write changed a file")
		}
		if entries, err := os.ReadDir(disk.Path); err != nil || len(entries) != len(paths) {
			t.Errorf("left are %v, %v", entries, err)
		}
	})
	for _, path := range paths {
		want := "writing " + path + ": no space left on device"
		if !messages[want] {
			t.Errorf("no error is %q", want)
		}
		delete(messages, want)
	}
	if len(messages) > 0 {
		t.Errorf("other errors are %v", messages)
	}
}
