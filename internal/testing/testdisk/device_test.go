package testdisk

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestFreeze(t *testing.T) {
	d := NewDevice(t, 16<<20)
	file := filepath.Join(d.Path(), "file")
	thaw := d.Freeze()
	written := make(chan error, 1)
	go func() { written <- os.WriteFile(file, []byte("x"), 0o600) }()
	time.Sleep(50 * time.Millisecond) // a write that is not suspended takes less
	select {
	case err := <-written:
		t.Errorf("a write to a frozen disk returned %v", err)
		written <- err
	default:
	}
	thaw()
	if err := <-written; err != nil {
		t.Error(err)
	}
	thaw()
}

func TestFillDevice(t *testing.T) {
	d := NewDevice(t, 16<<20)
	file := filepath.Join(d.Path(), "file")
	free := d.Fill()
	if err := os.WriteFile(file, make([]byte, 8192), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("writing to a full disk: %v", err)
	}
	free()
	if err := os.WriteFile(file, make([]byte, 8192), 0o600); err != nil {
		t.Error(err)
	}
}
