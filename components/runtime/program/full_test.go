//go:build cgo

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/google/go-containerregistry/pkg/name"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestFullDisk pulls images that do not fit on the disk, one of them endless. The error must say
// so, nothing may be left behind, and some disk space must stay free.
func TestFullDisk(t *testing.T) {
	n := newNode(t)
	n.stop(15)
	const size = 16 << 20
	if err := os.RemoveAll(n.path("root")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(n.path("root"), 0o711); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("small", n.path("root"), "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(n.path("root"), syscall.MNT_DETACH) })
	n.start()
	host := registryServer(t, "", "")
	big, err := mutate.AppendLayers(empty.Image, layer(t, file{name: "small", data: "x"}), layer(t, file{name: "big", data: strings.Repeat("0123456789abcdef", 2<<20)}))
	if err != nil {
		t.Fatal(err)
	}
	push(t, host+"/big:v1", big, "", "")
	for range 2 {
		_, err := n.PullImage(context.Background(), &runtimeapi.PullImageRequest{Image: spec(host + "/big:v1")})
		if err == nil || !strings.Contains(err.Error(), "no space left on device") {
			t.Errorf("it was pulled: %v", err)
		}
		if entries, err := os.ReadDir(n.path("root/images/tmp")); err != nil || len(entries) != 0 {
			t.Errorf("left are %v, %v", entries, err)
		}
	}
	if list, err := n.ListImages(context.Background(), &runtimeapi.ListImagesRequest{}); err != nil || len(list.Images) != 0 {
		t.Errorf("images are %v, %v", list, err)
	}
	// An image that fits is pulled and runs.
	push(t, host+"/small:v1", busybox(t), "", "")
	if _, err := n.PullImage(context.Background(), &runtimeapi.PullImageRequest{Image: spec(host + "/small:v1")}); err != nil {
		t.Error(err)
	}
	pod := n.run(n.pod("full"))
	if out := n.output(pod, shell("c", "dd if=/dev/zero of=/x bs=1M 2>&1 | grep -o 'No space left on device'; echo end",
		func(c *runtimeapi.ContainerConfig) { c.Image = spec(host + "/small:v1") })); out != "No space left on device\nend\n" {
		t.Errorf("a write to the full disk returned %q", out)
	}
	if _, err := n.RemovePodSandbox(context.Background(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Error(err)
	}
	n.stop(15)
	if err := syscall.Unmount(n.path("root"), syscall.MNT_DETACH); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(n.path("root")); err != nil {
		t.Fatal(err)
	}
	n.start() // with the disk writable again, for the cleanup
	for _, dir := range []string{"root/containers", "root/sandboxes", "root/images/tmp"} {
		if err := os.MkdirAll(n.path(dir), 0o711); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLostLayer deletes a layer's files. The image must be reported as missing until it is pulled
// again.
func TestLostLayer(t *testing.T) {
	n := newNode(t)
	ctx := context.Background()
	host := registryServer(t, "", "")
	ref := host + "/box:v1"
	push(t, ref, busybox(t), "", "")
	pull := func() {
		t.Helper()
		if _, err := n.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec(ref)}); err != nil {
			t.Fatal(err)
		}
	}
	there := func() bool {
		t.Helper()
		st, err := n.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec(ref)})
		if err != nil {
			t.Fatal(err)
		}
		return st.Image != nil
	}
	pod := n.run(n.pod("lost"))
	for name, damage := range map[string]func(layer string) error{
		"gone":         os.RemoveAll,
		"emptied":      func(layer string) error { return os.RemoveAll(filepath.Join(layer, "fs", "bin")) },
		"no directory": func(layer string) error { return os.RemoveAll(filepath.Join(layer, "fs")) },
	} {
		pull()
		layers, err := filepath.Glob(n.path("root/images/layers", strings.Repeat("[0-9a-f]", 32)))
		if err != nil || len(layers) != 2 || !there() {
			t.Fatalf("the layers are %v, %v", layers, err)
		}
		for _, layer := range layers {
			if err := damage(layer); err != nil {
				t.Fatal(err)
			}
		}
		if there() {
			t.Errorf("%s: the image is still there", name)
		}
		if id, err := n.create(pod, shell("c", "true", func(c *runtimeapi.ContainerConfig) { c.Image = spec(ref) })); err == nil {
			t.Errorf("%s: container %s was made of it", name, id)
		}
		pull()
		if out := n.output(pod, shell("c-"+name, "cat /old/new; echo", func(c *runtimeapi.ContainerConfig) { c.Image = spec(ref) })); out != "new\n" {
			t.Errorf("%s: pulled again it says %q", name, out)
		}
	}
}

// TestChangedLayer changes a file deep in a layer that a container uses. The container must keep
// running, and the image must be pulled again for the next one.
func TestChangedLayer(t *testing.T) {
	n := newNode(t)
	ctx := context.Background()
	host := registryServer(t, "", "")
	ref, other := host+"/box:v1", host+"/other:v1"
	image := busybox(t)
	push(t, ref, image, "", "")
	second, err := mutate.AppendLayers(empty.Image, layer(t, file{name: "a", data: "b"}))
	if err != nil {
		t.Fatal(err)
	}
	push(t, other, second, "", "")
	pull := func(ref string) {
		t.Helper()
		if _, err := n.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec(ref)}); err != nil {
			t.Fatal(err)
		}
	}
	pull(ref)
	pull(other)
	of := func(c *runtimeapi.ContainerConfig) { c.Image = spec(ref) }
	pod := n.run(n.pod("changed"))
	old := n.startContainer(pod, shell("old", "exec sleep 1000", of))
	// Each layer is inspected once per process, so restart the runtime.
	n.stop(syscall.SIGKILL)
	files, err := filepath.Glob(n.path("root/images/layers/*/fs/etc/passwd"))
	if err != nil || len(files) != 1 {
		t.Fatalf("found %v, %v", files, err)
	}
	f, err := os.OpenFile(files[0], os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = f.WriteString("more\n")
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	n.start()
	n.eventually("the change to be seen", func() bool {
		st, err := n.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec(ref)})
		if err != nil {
			t.Fatal(err)
		}
		return st.Image == nil
	})
	pull(ref)
	if out := n.output(pod, shell("new", "grep -c more /etc/passwd", of)); out != "0\n" {
		t.Errorf("a new container finds %q", out)
	}
	// Garbage collection must not remove the old layer while it is used.
	if _, err := n.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: spec(other)}); err != nil {
		t.Error(err)
	}
	if out, err := n.exec(old, 60, "cat", "/old/new"); err != nil || string(out.Stdout) != "new" {
		t.Errorf("the old container says %v, %v", out, err)
	}
}

// TestReadOnlyDisk makes the disk read-only for a while. Running containers must keep running and
// be stoppable, calls must return the reason of failures, and everything must work again
// afterwards.
func TestReadOnlyDisk(t *testing.T) {
	mkfs, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		t.Skip("needs mkfs.ext4")
	}
	n := newNode(t)
	n.stop(syscall.SIGTERM)
	ctx := context.Background()
	disk := n.path("disk")
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(disk, 64<<20); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{mkfs, "-q", "-O", "^has_journal", disk}, {"mount", "-o", "loop", disk, n.path("root")}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("needs a separate disk: %v: %s", err, out)
		}
	}
	t.Cleanup(func() { _ = syscall.Unmount(n.path("root"), syscall.MNT_DETACH) })
	remount := func(flags uintptr) {
		t.Helper()
		// The file system may be busy for a moment after writes.
		n.eventually("the disk to be remounted", func() bool { return syscall.Mount("", n.path("root"), "", syscall.MS_REMOUNT|flags, "") == nil })
	}
	n.start()
	n.imported()
	pod := n.run(n.pod("readonly"))
	first := n.startContainer(pod, shell("first", "exec sleep 1000"))
	second := n.startContainer(pod, shell("second", "exec sleep 1000"))
	waiting, err := n.create(pod, shell("waiting", "exec sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	remount(syscall.MS_RDONLY)

	if out, err := n.exec(first, 60, "echo", "here"); err != nil || string(out.Stdout) != "here\n" {
		t.Errorf("exec in the running container: %v, %v", out, err)
	}
	why := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "read-only file system") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = n.create(pod, shell("third", "true"))
	why("creating a container", err)
	_, err = n.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: n.pod("another")})
	why("making a sandbox", err)
	_, err = n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: waiting})
	why("starting a container", err)
	if _, err := n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: second}); err != nil {
		t.Errorf("stopping a container: %v", err)
	}
	if st := n.status(second); st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode != 137 {
		t.Errorf("the stopped container is %v", st)
	}
	// The next runtime process has no record of that and detects it.
	n.stop(syscall.SIGKILL)
	n.start()
	if out, err := n.exec(first, 60, "echo", "still"); err != nil || string(out.Stdout) != "still\n" {
		t.Errorf("beside another runtime it says %v, %v", out, err)
	}
	if st := n.status(second); st.State != runtimeapi.ContainerState_CONTAINER_EXITED {
		t.Errorf("the stopped container is %v", st)
	}

	remount(0)
	if out := n.output(pod, shell("third", "echo again")); out != "again\n" {
		t.Errorf("afterwards a container says %q", out)
	}
	if _, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Error(err)
	}
	n.removePods("")
	n.stop(syscall.SIGTERM)
	if err := syscall.Unmount(n.path("root"), syscall.MNT_DETACH); err != nil {
		t.Error(err)
	}
	n.start() // with the disk writable again, for the cleanup
	for _, dir := range []string{"root/containers", "root/sandboxes", "root/images/tmp"} {
		if err := os.MkdirAll(n.path(dir), 0o711); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBadRegistry pulls from registries that send invalid data.
func TestBadRegistry(t *testing.T) {
	n := newNode(t)
	image := busybox(t)
	inner := registry.New(registry.Logger(quiet))
	var how string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		blob, manifest := strings.Contains(r.URL.Path, "/blobs/sha256:"), strings.Contains(r.URL.Path, "/manifests/")
		if r.Method != http.MethodGet || !blob && !manifest {
			inner.ServeHTTP(w, r)
			return
		}
		switch {
		case how == "endless" && manifest:
			w.Header().Set("Content-Type", string(types.DockerManifestSchema2))
			for {
				if _, err := w.Write(bytes.Repeat([]byte(" "), 1<<20)); err != nil {
					return
				}
			}
		case how == "schema 1" && manifest:
			w.Header().Set("Content-Type", string(types.DockerManifestSchema1Signed))
			_, _ = io.WriteString(w, `{"schemaVersion":1}`)
		case how == "corrupt" && blob, how == "cut" && blob:
			rec := httptest.NewRecorder()
			inner.ServeHTTP(rec, r)
			body := rec.Body.Bytes()
			if how == "corrupt" {
				body[len(body)/2] ^= 1
			}
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			if how == "cut" {
				body = body[:len(body)/2]
			}
			_, _ = w.Write(body)
		default:
			inner.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	push(t, host+"/box:v1", image, "", "")
	// An image for another platform only.
	other := platform(t, image)
	other.Architecture = "s390x"
	foreign, err := mutate.ConfigFile(image, other)
	if err != nil {
		t.Fatal(err)
	}
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: foreign, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}})
	pushIndex(t, host+"/foreign:v1", index)
	both := mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: goarch}}})
	pushIndex(t, host+"/both:v1", both)
	for _, c := range []struct{ how, name, want string }{
		{"endless", "box", "larger than"},
		{"schema 1", "box", "is no longer supported"},
		{"corrupt", "box", ""},
		{"cut", "box", ""},
		{"foreign", "foreign", "no match for platform"},
	} {
		how = c.how
		_, err := n.PullImage(context.Background(), &runtimeapi.PullImageRequest{Image: spec(host + "/" + c.name + ":v1")})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", how, err)
		}
		t.Logf("%s: %.300v", how, err)
		if entries, err := os.ReadDir(n.path("root/images/tmp")); err != nil || len(entries) != 0 {
			t.Errorf("%s: left are %v, %v", how, entries, err)
		}
	}
	how = ""
	for _, name := range []string{"box", "both"} {
		if _, err := n.PullImage(context.Background(), &runtimeapi.PullImageRequest{Image: spec(host + "/" + name + ":v1")}); err != nil {
			t.Error(err)
		}
	}
}

func pushIndex(t testing.TB, ref string, index v1.ImageIndex) {
	t.Helper()
	r, err := name.ParseReference(ref)
	if err == nil {
		err = remote.WriteIndex(r, index)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestBomb pulls a layer of a few kilobytes that expands to more than the disk size.
func TestBomb(t *testing.T) {
	if testing.Short() {
		t.Skip("writes much")
	}
	n := newNode(t)
	n.stop(15)
	if err := os.MkdirAll(n.path("root/images/tmp"), 0o711); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("small", n.path("root/images"), "tmpfs", 0, "size=64m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(n.path("root/images"), syscall.MNT_DETACH) })
	n.start()
	pr, pw := io.Pipe()
	go func() {
		w := tar.NewWriter(pw)
		err := w.WriteHeader(&tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1 << 30})
		zeros := make([]byte, 1<<20)
		for range 1 << 10 {
			if err == nil {
				_, err = w.Write(zeros)
			}
		}
		pw.CloseWithError(err)
	}()
	var compressed bytes.Buffer
	if err := gzipTo(&compressed, pr); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(compressed.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		t.Fatal(err)
	}
	host := registryServer(t, "", "")
	push(t, host+"/bomb:v1", image, "", "")
	_, err = n.PullImage(context.Background(), &runtimeapi.PullImageRequest{Image: spec(host + "/bomb:v1")})
	if err == nil || !strings.Contains(err.Error(), "not enough disk space") {
		t.Errorf("the bomb went off: %v", err)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(n.path("root/images"), &st); err != nil || st.Bavail*uint64(st.Bsize) < 60<<20 {
		t.Errorf("left are %d bytes, %v", st.Bavail*uint64(st.Bsize), err)
	}
}

func gzipTo(w io.Writer, r io.Reader) error {
	z := gzip.NewWriter(w)
	if _, err := io.Copy(z, r); err != nil {
		return err
	}
	return z.Close()
}
