package volume

import (
	"os"
	"path/filepath"
	"testing"
)

func TestKeepAndForget(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pod", "volume")
	if err := RemoveData(dir, "what.json", "at"); err != nil {
		t.Errorf("removing missing data: %v", err)
	}
	keep := func(what string) os.FileInfo {
		t.Helper()
		if err := SaveData(dir, "what.json", map[string]string{"is": what}); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(filepath.Join(dir, "what.json"))
		if err != nil || string(raw) != `{"is":"`+what+`"}` {
			t.Fatalf("saved %q, %v", raw, err)
		}
		info, err := os.Stat(filepath.Join(dir, "what.json"))
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	first := keep("one")
	if first.Mode() != 0o600 {
		t.Errorf("mode %v", first.Mode())
	}
	if !os.SameFile(first, keep("one")) {
		t.Error("unchanged data was written again")
	}
	if os.SameFile(first, keep("two")) {
		t.Error("the file was not replaced atomically")
	}
	// Simulates a kubelet that was killed during the write.
	if err := os.WriteFile(filepath.Join(dir, ".what.json123"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(dir, "foreign")
	for _, made := range []string{foreign, filepath.Join(dir, "at")} {
		if err := os.Mkdir(made, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := RemoveData(dir, "what.json", "at"); err == nil {
		t.Error("a directory with other content was removed")
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Error(err)
	}
	if err := os.Remove(foreign); err != nil {
		t.Fatal(err)
	}
	if err := RemoveData(dir, "what.json", "at"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the directory remains: %v", err)
	}
}
