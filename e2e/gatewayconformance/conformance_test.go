//go:build linux

// Package gatewayconformance runs the conformance suite of the Gateway API against a cluster with the add-on gateway:
//
//	make gateway-conformance
//
// `make test` runs the tests of the target gateway-conformance-subset: one for each kind of route with a hostname.
//
// The suite is the official one, sigs.k8s.io/gateway-api/conformance. The backend images of its manifests are built from
// the sources in the same module, and imported under the names that the manifests use.
package gatewayconformance

import (
	"archive/tar"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"sigs.k8s.io/gateway-api/conformance"
)

// backends are the images of the suite's manifests with the program that they run.
func backends() map[string][]string {
	return map[string][]string{
		"sigs.k8s.io/gateway-api/conformance/echo-basic": {
			"registry.k8s.io/gateway-api/echo-basic:v1.5.1", "registry.k8s.io/gateway-api/echo-basic:v1.6.0-dev.2", "registry.k8s.io/gateway-api/echo-basic:v1.6.0-dev.3",
		},
		// The suite uses CoreDNS as a backend that answers datagrams. Any DNS server with the same records will do.
		"hyperkube/e2e/gatewayconformance/dnsbackend": {"registry.k8s.io/coredns/coredns:v1.12.2"},
	}
}

// TestConformance runs the suite. The flags of the suite select profiles and tests, see conformance/utils/flags.
func TestConformance(t *testing.T) {
	if binary == "" {
		t.Skip("$HYPERKUBE_E2E is not set")
	}
	for program, images := range backends() {
		importImage(t, program, images)
	}
	conformance.RunConformance(t)
}

// importImage builds a program and imports images that run it.
func importImage(t *testing.T, program string, names []string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "program")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", file, program)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", program, err, out)
	}
	layerFile := filepath.Join(dir, "layer.tar")
	if err := writeLayer(layerFile, file); err != nil {
		t.Fatalf("packing %s: %v", program, err)
	}
	layer, err := tarball.LayerFromFile(layerFile)
	if err != nil {
		t.Fatalf("packing %s: %v", program, err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatalf("packing %s: %v", program, err)
	}
	image, err = mutate.Config(image, v1.Config{Entrypoint: []string{"/program"}, WorkingDir: "/"})
	if err != nil {
		t.Fatalf("packing %s: %v", program, err)
	}
	for _, imageName := range names {
		ref, err := name.NewTag(imageName)
		if err != nil {
			t.Fatal(err)
		}
		archive := filepath.Join(dir, "image.tar")
		if err := tarball.WriteToFile(archive, ref, image); err != nil {
			t.Fatalf("packing %s: %v", program, err)
		}
		args := []string{"image", "import", archive}
		if root != "" {
			args = append(args, "--root", root)
		}
		if out, err := exec.CommandContext(t.Context(), binary, args...).CombinedOutput(); err != nil {
			t.Fatalf("importing %s: %v\n%s", imageName, err, strings.TrimSpace(string(out)))
		}
	}
}

// writeLayer writes a tar archive with a program as the file /program.
func writeLayer(archive, program string) error {
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	out, err := os.Create(archive)
	if err != nil {
		return err
	}
	defer out.Close()
	w := tar.NewWriter(out)
	if err := w.WriteHeader(&tar.Header{Name: "program", Mode: 0o755, Size: int64(len(data)), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return err
	}
	return w.Close()
}
