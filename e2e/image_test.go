package e2e

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// busybox is the reference of the image with a shell that tests make.
const busybox = "busybox:e2e"

// busyboxImage makes an image of the machine's static busybox, with its
// applets as links and a user of its own.
func busyboxImage() (v1.Image, error) {
	program, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return nil, fmt.Errorf("busybox-static is needed: %w", err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	add := func(h *tar.Header, data []byte) {
		h.Size = int64(len(data))
		if err == nil {
			err = w.WriteHeader(h)
		}
		if err == nil {
			_, err = w.Write(data)
		}
	}
	for _, dir := range []string{"bin", "etc", "tmp", "root", "usr", "var"} {
		add(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}, nil)
	}
	add(&tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755}, program)
	for _, applet := range strings.Fields("sh cat ls sleep wget nslookup echo true false id env ps kill touch test tar nc httpd head tail seq mkdir rm date hostname stat grep stty tty dd") {
		add(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox"}, nil)
	}
	add(&tar.Header{Typeflag: tar.TypeReg, Name: "etc/passwd", Mode: 0o644}, []byte("root:x:0:0::/root:/bin/sh\nweb:x:1000:1000::/:/bin/sh\n"))
	add(&tar.Header{Typeflag: tar.TypeReg, Name: "etc/group", Mode: 0o644}, []byte("root:x:0:\nweb:x:1000:\n"))
	if err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(layer.Bytes())), nil
	})
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return nil, err
	}
	return mutate.Config(image, v1.Config{Cmd: []string{"sh"}, Env: []string{"PATH=/bin:/usr/bin"}})
}

var importOnce sync.Once

// needBusybox imports the image into the cluster, once.
func (s *space) needBusybox() {
	s.Helper()
	var err error
	importOnce.Do(func() {
		var image v1.Image
		if image, err = busyboxImage(); err != nil {
			return
		}
		tag, _ := name.NewTag(busybox)
		file := filepath.Join(s.dir, "busybox.tar")
		if err = tarball.WriteToFile(file, tag, image); err != nil {
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

// serveImages runs a registry with one image that wants a password, on this
// host's loopback, and returns its address.
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
