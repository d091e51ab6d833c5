//go:build cgo

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/images"
)

func spec(ref string) *runtimeapi.ImageSpec { return &runtimeapi.ImageSpec{Image: ref} }

func TestPull(t *testing.T) {
	n := newNode(t)
	ctx := context.Background()
	host := registryServer(t, "joe", "secret")
	image := busybox(t)
	ref := host + "/some/box:v1"
	push(t, ref, image, "joe", "secret")
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	auth := &runtimeapi.AuthConfig{Username: "joe", Password: "secret"}
	_, err = n.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec(ref)})
	if err == nil || !strings.Contains(err.Error(), `failed to pull and unpack image "`+ref+`": failed to resolve reference "`+ref+`": pull access denied`) {
		t.Errorf("without credentials: %v", err)
	}
	_, err = n.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec(host + "/none:v1"), Auth: auth})
	if status.Code(err) != codes.NotFound || !strings.HasSuffix(err.Error(), host+"/none:v1: not found") {
		t.Errorf("no image: %v", err)
	}
	_, err = n.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec("127.0.0.1:1/none:v1")})
	if err == nil || !strings.Contains(err.Error(), "failed to do request: ") {
		t.Errorf("no registry: %v", err)
	}
	if _, err := n.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec("UPPER")}); err == nil {
		t.Error("a bad name was pulled")
	}
	_, err = n.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec(ref), Auth: &runtimeapi.AuthConfig{Username: "joe", Password: "secret", ServerAddress: "example.org"}})
	if err == nil || !strings.Contains(err.Error(), "pull access denied") {
		t.Errorf("with the credentials of another registry: %v", err)
	}
	got, err := n.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec(ref), Auth: &runtimeapi.AuthConfig{Username: "joe", Password: "secret", ServerAddress: "http://" + host}})
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	if got.ImageRef != config.String() {
		t.Errorf("pulled %s, want %s", got.ImageRef, config)
	}
	byDigest := host + "/some/box@" + digest.String()
	if got, err = n.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec(byDigest), Auth: &runtimeapi.AuthConfig{Auth: "am9lOnNlY3JldA=="}}); err != nil || got.ImageRef != config.String() {
		t.Errorf("by digest: %v, %v", got, err)
	}
	for _, known := range []string{ref, byDigest, config.String(), config.Hex} {
		st, err := n.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec(known)})
		if err != nil || st.Image.GetId() != config.String() || len(st.Image.RepoTags) != 1 || st.Image.RepoTags[0] != ref ||
			len(st.Image.RepoDigests) != 1 || st.Image.RepoDigests[0] != byDigest || st.Image.Pinned || st.Image.Size == 0 {
			t.Errorf("by %s: %v, %v", known, st, err)
		}
	}
	pod := n.run(n.pod("pull"))
	id := n.startContainer(pod, shell("c", "sleep 1000", func(c *runtimeapi.ContainerConfig) { c.Image = spec(ref) }))
	if st := n.status(id); st.ImageRef != byDigest || st.ImageId != config.String() {
		t.Errorf("the container is of %s, %s", st.ImageRef, st.ImageId)
	}
	// Containers keep their files when the image is removed.
	for range 2 {
		if _, err := n.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: spec(config.String())}); err != nil {
			t.Error(err)
		}
	}
	if got, err := n.exec(id, 60, "cat", "/old/new"); err != nil || string(got.Stdout) != "new" {
		t.Errorf("after the image went: %v, %v", got, err)
	}
	if list, err := n.ListImages(ctx, &runtimeapi.ListImagesRequest{}); err != nil || len(list.Images) != 0 {
		t.Errorf("images are %v, %v", list, err)
	}
	if _, err := n.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Error(err)
	}
	if _, err := n.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: spec(ref)}); err != nil {
		t.Error(err)
	}
	if fs, err := n.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{}); err != nil || len(fs.ImageFilesystems) != 1 {
		t.Errorf("filesystems are %v, %v", fs, err)
	}
}

func TestMirror(t *testing.T) {
	n := newNode(t)
	host := registryServer(t, "", "")
	push(t, host+"/mirrored/library/box:latest", busybox(t), "", "")
	push(t, host+"/mirrored/team/app:v1", busybox(t), "", "")
	n.stop(15)
	config := "mirrors:\n  docker.io:\n    endpoint: [\"http://127.0.0.1:1\", \"http://" + host + "/mirrored\"]\n" +
		"    rewrite: {\"^apps/(.*)\": \"team/$1\"}\n"
	if err := os.WriteFile(n.path("registries.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	pull := func(ref string) (id string) {
		var reports, done, total int64
		id, err := n.Pull(context.Background(), ref, func(d, t int64) { reports, done, total = reports+1, d, t })
		if err != nil {
			t.Fatalf("pulling %s: %v", ref, err)
		}
		if reports == 0 || done == 0 || done != total {
			t.Errorf("pulling %s: the last of %d reports is %d of %d bytes", ref, reports, done, total)
		}
		return id
	}
	pull("box")
	st, err := n.ImageStatus(context.Background(), &runtimeapi.ImageStatusRequest{Image: spec("docker.io/library/box:latest")})
	if err != nil || st.Image == nil || st.Image.RepoTags[0] != "docker.io/library/box:latest" {
		t.Errorf("the image is %v, %v", st, err)
	}
	// The store contains the layers, which count as downloaded.
	for _, ref := range []string{"docker.io/apps/app:v1", host + "/mirrored/team/app:v1"} {
		if id := pull(ref); id != st.Image.GetId() {
			t.Errorf("pulling %s: %s, want %s", ref, id, st.Image.GetId())
		}
	}
}

func TestArchives(t *testing.T) {
	n := newNode(t)
	ctx := context.Background()
	image := busybox(t)
	dir := t.TempDir()
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	err = path.AppendImage(image, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "registry.example/box:v2"}))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	w.Close()
	for range 2 {
		names, err := n.Import(ctx, bytes.NewReader(b.Bytes()))
		if err != nil || len(names) != 1 || names[0] != "registry.example/box:v2" {
			t.Fatalf("imported %v, %v", names, err)
		}
	}
	st, err := n.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec("registry.example/box:v2")})
	if err != nil || !st.Image.GetPinned() || len(st.Image.RepoDigests) != 1 {
		t.Errorf("the image is %v, %v", st, err)
	}
	for what, data := range map[string][]byte{"nothing": nil, "noise": []byte(strings.Repeat("noise", 1000)), "half": b.Bytes()[:b.Len()/2]} {
		if names, err := n.Import(ctx, bytes.NewReader(data)); err == nil {
			t.Errorf("%s: imported %v", what, names)
		}
	}
	// Archives in a directory are imported at startup.
	n.imported()
	n.stop(15)
	if err := os.Mkdir(n.path("images"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.path("images", "x.tar"), archive(t, "from/dir:v3", image), 0o600); err != nil {
		t.Fatal(err)
	}
	n.extra = append(n.extra, "--images-dir", n.path("images"))
	n.start()
	n.eventually("the import", func() bool {
		st, err := n.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec("from/dir:v3")})
		return err == nil && st.Image != nil
	})
	if st, err := n.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec("busybox")}); err != nil || len(st.GetImage().GetRepoTags()) != 3 {
		t.Errorf("the image is %v, %v", st, err)
	}
}

func TestHostileLayers(t *testing.T) {
	n := newNode(t)
	host := registryServer(t, "", "")
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("untouched"), 0o644); err != nil {
		t.Fatal(err)
	}
	for i, files := range [][]file{
		{{name: "../../../../../../../../" + outside, data: "bad"}},
		{{name: outside, data: "bad"}},
		{{name: "link", kind: tar.TypeSymlink, data: filepath.Dir(outside)}, {name: "link/outside", data: "bad"}},
		{{name: "up", kind: tar.TypeSymlink, data: "../../../../../../../../../" + filepath.Dir(outside)}, {name: "up/outside", data: "bad"}},
		{{name: "hard", kind: tar.TypeLink, data: outside}, {name: "hard", data: "bad"}},
		{{name: "soft", kind: tar.TypeSymlink, data: outside}, {name: "hard", kind: tar.TypeLink, data: "soft"}, {name: "hard", data: "bad"}},
		{{name: "soft", kind: tar.TypeSymlink, data: outside}, {name: "soft", data: "bad"}},
		{{name: "link", kind: tar.TypeSymlink, data: filepath.Dir(outside)}, {name: "link/.wh.outside"}},
		{{name: "dev", kind: tar.TypeBlock}, {name: ".wh."}},
		{{name: "a", kind: tar.TypeSymlink, data: "b"}, {name: "b", kind: tar.TypeSymlink, data: "a"}, {name: "a/x", data: "bad"}},
	} {
		image, err := mutate.AppendLayers(empty.Image, layer(t, files...))
		if err != nil {
			t.Fatal(err)
		}
		ref := host + "/hostile:v" + string(rune('a'+i))
		push(t, ref, image, "", "")
		_, err = n.PullImage(context.Background(), &runtimeapi.PullImageRequest{Image: spec(ref)})
		t.Logf("%d: %v", i, err)
		if data, err := os.ReadFile(outside); err != nil || string(data) != "untouched" {
			t.Fatalf("layer %d reached the host: %q, %v", i, data, err)
		}
	}
	// A layer whose digest differs from the configuration is rejected.
	image, err := mutate.AppendLayers(empty.Image, layer(t, file{name: "x", data: "x"}))
	if err != nil {
		t.Fatal(err)
	}
	c := platform(t, image)
	c.RootFS.DiffIDs = []v1.Hash{{Algorithm: "sha256", Hex: strings.Repeat("0", 64)}}
	if image, err = mutate.ConfigFile(image, c); err != nil {
		t.Fatal(err)
	}
	push(t, host+"/wrong:v1", image, "", "")
	if _, err := n.PullImage(context.Background(), &runtimeapi.PullImageRequest{Image: spec(host + "/wrong:v1")}); err == nil || !strings.Contains(err.Error(), "wrong digest") {
		t.Errorf("a wrong layer: %v", err)
	}
}

func TestBuiltIn(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	data, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Skip(err)
	}
	if err := os.WriteFile(program, data, 0o755); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, "--builtin", program, "--builtin-image", "hyperkube:v1-test")
	ctx := context.Background()
	var id string
	for _, ref := range []string{"hyperkube:v1-test", "docker.io/library/hyperkube:v1-test"} {
		st, err := n.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec(ref)})
		if err != nil || !st.Image.GetPinned() {
			t.Fatalf("the built-in image is %v, %v", st, err)
		}
		id = st.Image.Id
		if got, err := n.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec(ref)}); err != nil || got.ImageRef != id {
			t.Errorf("pulled %v, %v", got, err)
		}
	}
	// A removed built-in image can be pulled again without a registry.
	for _, ref := range []string{"hyperkube:v1-test", "hyperkube"} {
		if _, err := n.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: spec(id)}); err != nil {
			t.Fatal(err)
		}
		if got, err := n.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec(ref)}); err != nil || got.ImageRef != id {
			t.Errorf("pulled again by %s: %v, %v", ref, got, err)
		}
	}
	pod := n.run(n.pod("builtin"))
	// busybox selects the applet by argv[0].
	id2 := n.startContainer(pod, shell("c", "", func(c *runtimeapi.ContainerConfig) { c.Image, c.Command = spec("hyperkube:v1-test"), nil }))
	n.waitExit(id2)
	if got := n.logText(id2); got != "hyperkube: applet not found\n" {
		t.Errorf("it said %q", got)
	}
	if _, err := n.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id2}); err != nil {
		t.Error(err)
	}
	// Another program yields another image, and the old one can be removed.
	n.stop(15)
	if err := os.WriteFile(program+"2", append(data, 0), 0o755); err != nil {
		t.Fatal(err)
	}
	n.extra = []string{"--builtin", program + "2", "--builtin-image", "hyperkube:v2-test"}
	n.start()
	if st, err := n.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec(id)}); err != nil || st.Image.GetPinned() {
		t.Errorf("the old image is %v, %v", st, err)
	}
}

func TestNames(t *testing.T) {
	for in, want := range map[string]string{
		"busybox": "docker.io/library/busybox:latest", "a/b:c": "docker.io/a/b:c", "localhost:5000/x": "localhost:5000/x:latest",
		"registry.k8s.io/pause:3.10": "registry.k8s.io/pause:3.10",
	} {
		if got, err := images.Normalize(in); err != nil || got != want {
			t.Errorf("%s is %s, %v", in, got, err)
		}
	}
	if _, err := name.ParseReference("x"); err != nil {
		t.Error(err)
	}
}
