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

	"hyperkube/internal/testimage"
)

// listen listens on the loopback of the namespace. Sockets stay in the
// namespace in which they were made.
func (a *apart) listen() net.Listener {
	a.Helper()
	type result struct {
		net.Listener
		error
	}
	made := make(chan result)
	go func() {
		// The thread ends with this goroutine, and the namespace with it.
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

// serveRegistry runs a registry that the namespace reaches by inside, with one
// image of each name, all different.
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
		go func() { _ = server.Serve(l) }() // ends with Close
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

// collectsImages fills the disk, by what the kubelet takes for full: of all
// images only the one goes that was pulled and is not used.
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
	// The collected one is pulled again when it is wanted.
	a.inside(a.binary, "image", "--root="+a.home, "pull", unused)
	a.do("delete", "pod", "user", "--wait")
}
