package pluginwatch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/connectivity"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// TestLongSocket: a plugin in a folder whose path no address can hold is reached,
// before and after it has begun anew.
func TestLongSocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", longestAddress))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// Plugins bind their sockets by paths of their own mounts, which are short.
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
		// A call on the connection that is just being lost would fail.
		conn.WaitForStateChange(t.Context(), connectivity.Ready)
		conn.ResetConnectBackoff()
	}
}
