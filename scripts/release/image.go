package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// imageName is the name of the image. It differs from that of the built-in image, so that a cluster in a cluster
// can run it.
const imageName = "localhost/hyperkube"

// blob is a file in an image archive that is named after its checksum.
type blob struct {
	digest v1.Hash
	data   []byte
}

func newBlob(data []byte) blob {
	sum := sha256.Sum256(data)
	return blob{digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}, data: data}
}

func (b blob) path() string { return "blobs/sha256/" + b.digest.Hex }

func (b blob) descriptor(mediaType types.MediaType) v1.Descriptor {
	return v1.Descriptor{MediaType: mediaType, Size: int64(len(b.data)), Digest: b.digest}
}

// writeImage writes a container image with two layers to file: the files of base, and the program
// with its licenses from installed. The archive is an OCI image layout, and also has the manifest
// that `docker load` reads.
func (c config) writeImage(file string, t target, base, installed tree) error {
	program := tree{
		"usr/local/bin/kubectl": {link: "/usr/bin/hyperkube"},
	}
	for name, e := range installed {
		if name == "bin/hyperkube" || strings.HasPrefix(name, docDir+"/") {
			program[path.Join("usr", name)] = e
		}
	}
	config := v1.ConfigFile{
		Architecture: t.arch, OS: "linux", Created: v1.Time{Time: c.time},
		Config: v1.Config{
			Entrypoint: []string{"/usr/bin/hyperkube"},
			Cmd:        []string{"up", "--foreground"},
			Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"},
			WorkingDir: "/",
			// The kernel does not stack an overlay on the overlay of the container.
			Volumes:      map[string]struct{}{"/var/lib/hyperkube": {}},
			ExposedPorts: map[string]struct{}{"6443/tcp": {}},
			StopSignal:   "SIGTERM",
			Labels: map[string]string{
				"org.opencontainers.image.title":    "hyperkube",
				"org.opencontainers.image.version":  c.version,
				"org.opencontainers.image.revision": c.commit,
				"org.opencontainers.image.licenses": ourLicense,
			},
		},
		RootFS: v1.RootFS{Type: "layers"},
	}
	manifest := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	var blobs []blob
	var layerPaths []string
	for _, layer := range []struct {
		files tree
		by    string
	}{{base, "Debian packages"}, {program, "hyperkube"}} {
		var raw, zipped bytes.Buffer
		if err := layer.files.writeTar(&raw, c.time); err != nil {
			return err
		}
		zip := gzip.NewWriter(&zipped)
		if _, err := zip.Write(raw.Bytes()); err != nil {
			return fmt.Errorf("compressing a layer: %w", err)
		}
		if err := zip.Close(); err != nil {
			return fmt.Errorf("compressing a layer: %w", err)
		}
		b := newBlob(zipped.Bytes())
		blobs, layerPaths = append(blobs, b), append(layerPaths, b.path())
		manifest.Layers = append(manifest.Layers, b.descriptor(types.OCILayer))
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, newBlob(raw.Bytes()).digest)
		config.History = append(config.History, v1.History{Created: v1.Time{Time: c.time}, CreatedBy: layer.by})
	}
	data, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("encoding the image configuration: %w", err)
	}
	configBlob := newBlob(data)
	manifest.Config = configBlob.descriptor(types.OCIConfigJSON)
	if data, err = json.Marshal(manifest); err != nil {
		return fmt.Errorf("encoding the image manifest: %w", err)
	}
	manifestBlob := newBlob(data)
	tag := strings.ReplaceAll(c.version, "+", "-") // as in the name of the built-in image
	name := imageName + ":" + tag
	entry := manifestBlob.descriptor(types.OCIManifestSchema1)
	entry.Annotations = map[string]string{"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": name}
	entry.Platform = &v1.Platform{OS: "linux", Architecture: t.arch}
	return c.writeLayout(file, append(blobs, configBlob, manifestBlob), map[string]any{
		"oci-layout": map[string]string{"imageLayoutVersion": "1.0.0"},
		"index.json": v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{entry}},
		"manifest.json": []map[string]any{{
			"Config": configBlob.path(), "RepoTags": []string{name}, "Layers": layerPaths,
		}},
	})
}

// writeLayout writes a tar archive with the blobs, and the documents, which are keyed by file name
// and encoded as JSON.
func (c config) writeLayout(file string, blobs []blob, documents map[string]any) error {
	files := tree{}
	for _, b := range blobs {
		files[b.path()] = entry{data: b.data}
	}
	for name, document := range documents {
		data, err := json.Marshal(document)
		if err != nil {
			return fmt.Errorf("encoding %s: %w", name, err)
		}
		files[name] = entry{data: data}
	}
	return create(file, func(w io.Writer) error { return files.writeTar(w, c.time) })
}
