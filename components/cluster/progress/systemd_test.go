package progress

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestNotifySystemd(t *testing.T) {
	for _, address := range []string{filepath.Join(t.TempDir(), "notify"), fmt.Sprintf("@hyperkube-test-notify-%d", os.Getpid())} {
		socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		defer socket.Close()
		t.Setenv("NOTIFY_SOCKET", address)
		NotifySystemd("READY=1")
		if err := socket.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 64)
		n, err := socket.Read(got)
		if err != nil || string(got[:n]) != "READY=1" {
			t.Errorf("%s: got %q, %v", address, got[:n], err)
		}
	}
	// Without systemd, or without its socket, nothing happens.
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	NotifySystemd("READY=1")
	os.Unsetenv("NOTIFY_SOCKET")
	NotifySystemd("READY=1")
}
