package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"hyperkube/internal/testing/testimage"
)

// busybox is the reference of the test image with a shell.
const busybox = "busybox:e2e"

// needBusybox imports the image into the cluster if that has not been done.
func (s *space) needBusybox() {
	s.Helper()
	var err error
	s.busybox.Do(func() {
		file := filepath.Join(s.dir, "busybox.tar")
		if err = testimage.WriteBusybox(file, busybox); err != nil {
			return
		}
		var out []byte
		if out, err = exec.Command(s.binary, "image", "import", file).CombinedOutput(); err != nil {
			err = fmt.Errorf("image import: %w: %s", err, out)
		}
	})
	if err != nil {
		s.Fatal(err)
	}
}

// serveImages runs a registry with an image that requires a password, on the host's loopback
// address, and returns its address.
func serveImages(t *testing.T, user, password string, images map[string]v1.Image) string {
	t.Helper()
	inner := registry.New()
	var open bool
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, p, ok := r.BasicAuth()
		if !open && (!ok || u != user || p != password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="e2e"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	address := listener.Addr().String()
	open = true
	for ref, image := range images {
		tag, err := name.NewTag(address+"/"+ref, name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(tag, image); err != nil {
			t.Fatal(err)
		}
	}
	open = false
	return address
}
