package images

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

// archive is an image archive that Import has unpacked to a temporary directory. Each file is named by the hash of its
// name in the archive, so a name cannot lead outside of the directory.
type archive struct {
	dir string
	// links are the symlinks in old docker archives. They refer to a layer that occurs twice.
	links map[string]string
}

// Imported is an image that Import has read from an archive, with the names that the archive gives it.
type Imported struct {
	*Image
	// Names are the names in the archive. The image may have other names in the store.
	Names []string
}

// Import reads an archive created by `docker save`, or a tar of an OCI image layout, compressed or not. It adds the
// images for this platform to the store, pinned so that they are not garbage collected, and returns them. It returns an
// error if the archive contains none. After an error, images that precede it in the archive may have been added; they
// are returned too.
func (s *Store) Import(ctx context.Context, r io.Reader) ([]Imported, error) {
	dir, err := os.MkdirTemp(s.path("tmp"), "import-")
	if err != nil {
		return nil, fmt.Errorf("importing images: %w", s.diskFull(err))
	}
	defer func() { _ = os.RemoveAll(dir) }() // Open removes leftovers
	a := &archive{dir: dir, links: map[string]string{}}
	if err := a.spool(ctx, r); err != nil {
		return nil, fmt.Errorf("reading image archive: %w", s.diskFull(err))
	}
	var imported []Imported
	if data, err := a.document("manifest.json"); err == nil {
		imported, err = s.importDocker(ctx, a, data)
		if err != nil {
			return imported, fmt.Errorf("importing images: %w", err)
		}
	} else if data, err := a.document("index.json"); err == nil {
		imported, err = s.importOCI(ctx, a, data)
		if err != nil {
			return imported, fmt.Errorf("importing images: %w", err)
		}
	} else {
		return nil, errors.New("invalid image archive: neither manifest.json nor index.json found")
	}
	if len(imported) == 0 {
		return nil, fmt.Errorf("the archive has no image for linux/%s", runtime.GOARCH)
	}
	return imported, nil
}

// ImportFile is Import with an archive file.
func (s *Store) ImportFile(ctx context.Context, file string) ([]Imported, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("importing images: %w", err)
	}
	defer f.Close()
	return s.Import(ctx, f)
}

// spool unpacks the archive that r contains, which may be compressed, to the directory of a. Links are recorded
// instead of created.
func (a *archive) spool(ctx context.Context, r io.Reader) error {
	plain, err := decompress(r)
	if err != nil {
		return err
	}
	defer plain.Close()
	t := tar.NewReader(&spaceGuard{r: plain, dir: a.dir})
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := clean(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			f, err := os.Create(a.file(name))
			if err != nil {
				return err
			}
			_, err = io.Copy(f, t)
			if err := errors.Join(err, f.Close()); err != nil {
				return err
			}
		case tar.TypeSymlink:
			a.links[name] = clean(path.Join(path.Dir("/"+name), h.Linkname))
		case tar.TypeLink:
			a.links[name] = clean(h.Linkname)
		}
	}
}

// clean returns the canonical form of a file name in the archive.
func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// file returns the path at which a file of the archive is stored.
func (a *archive) file(name string) string {
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(a.dir, hex.EncodeToString(sum[:]))
}

// open opens a file of the archive by its name. It follows up to 8 links in the archive. A file that the
// archive does not have is an error.
func (a *archive) open(name string) (*os.File, error) {
	name = clean(name)
	for range 8 {
		target, ok := a.links[name]
		if !ok {
			break
		}
		name = target
	}
	f, err := os.Open(a.file(name))
	if err != nil {
		return nil, fmt.Errorf("%q not found in archive", name)
	}
	return f, nil
}

// document reads a manifest, index or configuration in the archive. It returns an error if it does not exist or is
// larger than maxDocumentSize.
func (a *archive) document(name string) ([]byte, error) {
	f, err := a.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxDocumentSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxDocumentSize {
		return nil, fmt.Errorf("%q in archive is too large", name)
	}
	return data, nil
}

// size returns the size of a file of the archive in bytes, or 0 if it does not exist.
func (a *archive) size(name string) uint64 {
	f, err := a.open(name)
	if err != nil {
		return 0
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0
	}
	return uint64(info.Size())
}

// blob returns a function that opens a layer in the archive.
func (a *archive) blob(name string) blob {
	return func(context.Context) (io.ReadCloser, error) { return a.open(name) }
}

// importDocker imports the images of an archive in the format of `docker save`. data is its manifest.json. After an
// error it also returns the images that were imported before.
func (s *Store) importDocker(ctx context.Context, a *archive, data []byte) ([]Imported, error) {
	var list []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("parsing manifest.json: %w", err)
	}
	var out []Imported
	for _, m := range list {
		config, err := a.document(m.Config)
		if err != nil {
			return out, err
		}
		record := Image{Pinned: true, Size: uint64(len(config))}
		for _, tag := range m.RepoTags {
			normal, err := Normalize(tag)
			if err != nil {
				return out, err
			}
			record.Tags = append(record.Tags, normal)
		}
		var blobs []blob
		for _, layer := range m.Layers {
			blobs = append(blobs, a.blob(layer))
			record.Size += a.size(layer)
		}
		image, err := s.assemble(ctx, config, blobs, record)
		if err != nil {
			return out, err
		}
		out = append(out, Imported{image, record.Tags})
	}
	return out, nil
}

// descriptor refers to a manifest, index, configuration or layer in an OCI layout.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Annotations map[string]string `json:"annotations"`
	Platform    *struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
	} `json:"platform"`
}

// manifest is an image manifest, which has a Config and Layers, or an image index, which has Manifests.
type manifest struct {
	Config    *descriptor  `json:"config"`
	Layers    []descriptor `json:"layers"`
	Manifests []descriptor `json:"manifests"`
}

// importOCI imports the images of an archive with an OCI layout. data is its index.json. After an error it also returns
// the images that were imported before.
func (s *Store) importOCI(ctx context.Context, a *archive, data []byte) ([]Imported, error) {
	var index manifest
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, fmt.Errorf("parsing index.json: %w", err)
	}
	var out []Imported
	for _, d := range index.Manifests {
		image, err := s.importManifest(ctx, a, d, nameOf(d), d.Digest, 0)
		if err != nil {
			return out, err
		}
		if image != nil {
			out = append(out, *image)
		}
	}
	return out, nil
}

// nameOf returns the image name in the annotations of a descriptor. It is empty if there is no name or it is only a
// tag.
func nameOf(d descriptor) string {
	for _, key := range []string{"io.containerd.image.name", "org.opencontainers.image.ref.name"} {
		if name := d.Annotations[key]; strings.ContainsAny(name, "/:") {
			return name
		}
	}
	return ""
}

// importManifest imports the image to which d refers; if d refers to an index, it imports the image for this platform.
// name is the image name, or empty. top is the digest of the descriptor in index.json, to which the name refers. depth
// is the number of nested indexes. It returns nil if d is for another platform or does not refer to an image.
func (s *Store) importManifest(ctx context.Context, a *archive, d descriptor, name, top string, depth int) (*Imported, error) {
	if depth > 4 {
		return nil, errors.New("image indexes are nested too deeply")
	}
	if p := d.Platform; p != nil && (p.OS != "linux" || p.Architecture != runtime.GOARCH) {
		return nil, nil
	}
	data, err := a.verifiedDocument(d.Digest)
	if err != nil {
		return nil, err
	}
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("parsing manifest: %w", err)
	}
	if m.Config == nil {
		for _, child := range m.Manifests {
			image, err := s.importManifest(ctx, a, child, name, top, depth+1)
			if image != nil || err != nil {
				return image, err
			}
		}
		return nil, nil
	}
	if !strings.Contains(m.Config.MediaType, "config") && !strings.Contains(m.Config.MediaType, "container.image") {
		return nil, nil // an artifact
	}
	config, err := a.verifiedDocument(m.Config.Digest)
	if err != nil {
		return nil, err
	}
	record := Image{Pinned: true, Size: uint64(len(config))}
	if name != "" {
		normal, err := Normalize(name)
		if err != nil {
			return nil, err
		}
		if !isDigest(normal) {
			record.Tags = []string{normal}
		}
		record.Digests = []string{repository(normal) + "@" + top}
	}
	var blobs []blob
	for _, layer := range m.Layers {
		file, err := blobPath(layer.Digest)
		if err != nil {
			return nil, err
		}
		blobs = append(blobs, a.blob(file))
		record.Size += a.size(file)
	}
	image, err := s.assemble(ctx, config, blobs, record)
	if err != nil {
		return nil, err
	}
	return &Imported{image, record.Tags}, nil
}

// blobPath returns the file name in an OCI layout of the content with this digest.
func blobPath(digest string) (string, error) {
	if !isSHA256(digest) {
		return "", fmt.Errorf("invalid digest %q in archive", digest)
	}
	return "blobs/sha256/" + strings.TrimPrefix(digest, "sha256:"), nil
}

// verifiedDocument reads the document with this digest from an OCI layout. It returns an error if the content has
// another digest.
func (a *archive) verifiedDocument(digest string) ([]byte, error) {
	file, err := blobPath(digest)
	if err != nil {
		return nil, err
	}
	data, err := a.document(file)
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	sum.Write(data)
	return data, checkSum(sum, digest)
}
