package csi

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"hyperkube/components/kubelet/pod/volume"
)

// TestDamagedData checks that a damaged data file of one volume does not keep the node from running
// pods, and that the other volumes are known.
func TestDamagedData(t *testing.T) {
	root := t.TempDir()
	good, bad := filepath.Join(root, "pods", "a", "volumes", pluginName, "v"), filepath.Join(root, "pods", "b", "volumes", pluginName, "v")
	if err := volume.SaveData(good, dataFile, data{Driver: "d", Handle: "h", Attachment: "x"}); err != nil {
		t.Fatal(err)
	}
	staged := places{root}.staged(key{"d", "other"})
	for _, dir := range []string{bad, staged} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, dataFile), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p, err := New(Config{Root: root, NodeName: "n", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if used := p.VolumesInUse(); len(used) != 1 {
		t.Errorf("in use: %v", used)
	}
	if err := p.unstageUnused(t.Context()); err == nil {
		t.Error("damaged data is not reported")
	}
}
