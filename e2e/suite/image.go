//go:build linux

package suite

import (
	"archive/tar"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Image is an image whose only file is a program, /program.
type Image struct {
	Package string   // the Go package of the program
	Names   []string // names under which the image is imported
	Links   []string // further paths of the program, relative to the root directory
	User    string   // the user that runs the program; root if empty
}

// Build builds the program of a package into a new file, and returns its path.
func Build(t *testing.T, pkg string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "program")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", file, pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", pkg, err, out)
	}
	return file
}

// Import builds an image and imports it into the cluster.
func (c Cluster) Import(t *testing.T, i Image) {
	t.Helper()
	dir := t.TempDir()
	layerFile := filepath.Join(dir, "layer.tar")
	if err := writeLayer(layerFile, Build(t, i.Package), i.Links); err != nil {
		t.Fatalf("packing %s: %v", i.Package, err)
	}
	layer, err := tarball.LayerFromFile(layerFile)
	if err != nil {
		t.Fatalf("packing %s: %v", i.Package, err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatalf("packing %s: %v", i.Package, err)
	}
	image, err = mutate.Config(image, v1.Config{Entrypoint: []string{"/program"}, WorkingDir: "/", User: i.User})
	if err != nil {
		t.Fatalf("packing %s: %v", i.Package, err)
	}
	for _, imageName := range i.Names {
		ref, err := name.NewTag(imageName)
		if err != nil {
			t.Fatal(err)
		}
		archive := filepath.Join(dir, "image.tar")
		if err := tarball.WriteToFile(archive, ref, image); err != nil {
			t.Fatalf("packing %s: %v", i.Package, err)
		}
		args := []string{"image", "import", archive}
		if c.Root != "" {
			args = append(args, "--root", c.Root)
		}
		if err := c.Hyperkube(args...); err != nil {
			t.Fatalf("importing %s: %v", imageName, err)
		}
	}
}

// writeLayer writes a tar archive with a program as the file /program, and symbolic links to it.
func writeLayer(archive, program string, links []string) error {
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
	for _, link := range links {
		if err := w.WriteHeader(&tar.Header{Name: link, Linkname: "/program", Mode: 0o777, Typeflag: tar.TypeSymlink}); err != nil {
			return err
		}
	}
	return w.Close()
}
