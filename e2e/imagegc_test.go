package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sys/unix"

	"hyperkube/internal/testing/testimage"
)

// listen listens on the loopback address in the namespace. Sockets stay in the namespace in which
// they were created.
func (a *apart) listen() net.Listener {
	a.Helper()
	type result struct {
		net.Listener
		error
	}
	made := make(chan result)
	go func() {
		// The thread, which is in the namespace, exits with this goroutine.
		runtime.LockOSThread()
		l, err := func() (net.Listener, error) {
			ns, err := os.Open(a.namespace)
			if err != nil {
				return nil, err
			}
			defer ns.Close()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return nil, err
			}
			return net.Listen("tcp", "127.0.0.1:0")
		}()
		made <- result{l, err}
	}()
	r := <-made
	if r.error != nil {
		a.Fatal(r.error)
	}
	return r.Listener
}

// serveRegistry runs a registry with a different image for each name. inside is its address in the
// namespace.
func (a *apart) serveRegistry(names ...string) (inside string) {
	a.Helper()
	handler := registry.New()
	host, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		a.Fatal(err)
	}
	within := a.listen()
	for _, l := range []net.Listener{host, within} {
		server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
		go func() { _ = server.Serve(l) }() // returns after Close
		a.Cleanup(func() { server.Close() })
	}
	base, err := testimage.Busybox()
	if err != nil {
		a.Fatal(err)
	}
	for i, n := range names {
		image, err := mutate.CreatedAt(base, v1.Time{Time: time.Unix(int64(i), 0)})
		if err != nil {
			a.Fatal(err)
		}
		tag, err := name.NewTag(host.Addr().String()+"/"+n, name.Insecure)
		if err != nil {
			a.Fatal(err)
		}
		if err := remote.Write(tag, image); err != nil {
			a.Fatal(err)
		}
	}
	return within.Addr().String()
}

// collectsImages lowers the threshold at which the kubelet considers the disk full: only the
// pulled, unused image is deleted.
func (a *apart) collectsImages() {
	from := a.serveRegistry("used:1", "unused:1")
	used, unused := from+"/used:1", from+"/unused:1"
	a.inside(a.binary, "image", "--root="+a.home, "pull", used, unused)
	a.apply(strings.ReplaceAll(strings.ReplaceAll(clientPod, busybox, used), "name: client", "name: user"))
	a.do("wait", "--for=condition=Ready", "pod/user", "--timeout=180s")
	a.stop("kubelet")
	old, err := os.ReadFile(a.path("kubelet.yaml"))
	if err != nil {
		a.Fatal(err)
	}
	config := strings.Replace(string(old), "imageGCHighThresholdPercent: 100", "imageGCHighThresholdPercent: 1", 1) + `
imageGCLowThresholdPercent: 0
imageMinimumGCAge: 1ms
containerLogMonitorInterval: 3s
`
	if err := os.WriteFile(a.path("kubelet.yaml"), []byte(config), 0o600); err != nil {
		a.Fatal(err)
	}
	a.startKubelet()
	a.ready()
	list := func() string { return a.inside(a.binary, "image", "--root="+a.home, "ls") }
	a.contains(list(), used, busybox)
	a.eventually(30*time.Second, func() error {
		if images := list(); strings.Contains(images, unused) {
			return fmt.Errorf("images:\n%s", images)
		}
		return nil
	})
	a.contains(list(), used, busybox, "hyperkube:")
	// The deleted image can be pulled again.
	a.inside(a.binary, "image", "--root="+a.home, "pull", unused)
	a.do("delete", "pod", "user", "--wait")
}
