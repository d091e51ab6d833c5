// Package testimage creates container images for tests and benchmarks without access to a registry.
package testimage

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Busybox creates an image with the machine's static busybox (/bin/busybox), links for its applets,
// and the users root and web. It returns an error if busybox is not installed.
func Busybox() (v1.Image, error) {
	program, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return nil, fmt.Errorf("reading busybox (install busybox-static): %w", err)
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
	for applet := range strings.FieldsSeq("sh cat ls sleep wget nslookup echo true false id env ps kill touch test tar nc httpd head tail seq mkdir rm date hostname stat grep stty tty dd") {
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

// WriteBusybox writes the image of Busybox to file, as a docker archive with the image reference
// ref.
func WriteBusybox(file, ref string) error {
	tag, err := name.NewTag(ref)
	if err != nil {
		return fmt.Errorf("parsing image name: %w", err)
	}
	image, err := Busybox()
	if err != nil {
		return err
	}
	if err := tarball.WriteToFile(file, tag, image); err != nil {
		return fmt.Errorf("writing image: %w", err)
	}
	return nil
}
