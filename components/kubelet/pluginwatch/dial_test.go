package pluginwatch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/connectivity"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// TestLongSocket checks that a plugin whose socket path exceeds the limit is reached, before and
// after its restart.
func TestLongSocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", maxSocketAddress))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// Plugins bind their sockets with short paths in the test's mount namespace.
	short := filepath.Join(t.TempDir(), "s")
	if err := os.Symlink(dir, short); err != nil {
		t.Fatal(err)
	}
	conn, err := Dial(filepath.Join(dir, "p.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := registerapi.NewRegistrationClient(conn)
	for range 2 {
		server := (&plugin{kind: "CSIPlugin"}).serve(t, filepath.Join(short, "p.sock"))
		info, err := client.GetInfo(t.Context(), &registerapi.InfoRequest{})
		if err != nil || info.Type != "CSIPlugin" {
			t.Fatalf("got %v, %v", info, err)
		}
		server.Stop()
		// A call on a connection that is being closed would fail.
		conn.WaitForStateChange(t.Context(), connectivity.Ready)
		conn.ResetConnectBackoff()
	}
}
