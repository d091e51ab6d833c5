package images

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"runtime"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// maxDocumentSize is the maximum size in bytes of image configurations and manifests, as in registries.
const maxDocumentSize = 8 << 20

// blob opens a layer in its stored form, compressed or not. The caller closes the result.
type blob func(ctx context.Context) (io.ReadCloser, error)

// assemble unpacks the layers that the store does not contain, up to three at the same time, and records the image.
// config is the image configuration. layers are in the order of the configuration. image contains the names, the
// size and whether it is pinned; assemble sets the other fields. It returns an error if the image is for another platform or a digest is wrong.
func (s *Store) assemble(ctx context.Context, config []byte, layers []blob, image Image) (*Image, error) {
	done, err := s.unpackAndRecord(ctx, config, layers, image)
	return done, s.diskFull(err)
}

// unpackAndRecord does what assemble describes. assemble calls it and then adds the handling of a full disk.
func (s *Store) unpackAndRecord(ctx context.Context, config []byte, layers []blob, image Image) (*Image, error) {
	if len(config) > maxDocumentSize {
		return nil, errors.New("image configuration is too large")
	}
	var doc document
	if err := json.Unmarshal(config, &doc); err != nil {
		return nil, fmt.Errorf("parsing image configuration: %w", err)
	}
	if doc.OS != "" && doc.OS != "linux" || doc.Architecture != "" && doc.Architecture != runtime.GOARCH {
		return nil, fmt.Errorf("the image is for %s/%s, this node is linux/%s", doc.OS, doc.Architecture, runtime.GOARCH)
	}
	if len(doc.RootFS.DiffIDs) != len(layers) {
		return nil, fmt.Errorf("the image has %d layers but its configuration has %d", len(layers), len(doc.RootFS.DiffIDs))
	}
	sum := sha256.Sum256(config)
	image.ID = "sha256:" + hex.EncodeToString(sum[:])
	image.Config = doc.Config
	image.Layers, image.DiffIDs = nil, doc.RootFS.DiffIDs
	for _, id := range doc.RootFS.DiffIDs {
		if !isSHA256(id) {
			return nil, fmt.Errorf("invalid layer digest %q in image configuration", id)
		}
		image.Layers = append(image.Layers, layerName(id))
	}
	defer s.Hold()()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wait sync.WaitGroup
	slots := make(chan struct{}, 3) // the same concurrency as other runtimes
	errs := make([]error, len(layers))
	for i, open := range layers {
		wait.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			err := s.layers.create(ctx, image.Layers[i], true, func(dir string) error {
				return unpackBlob(ctx, dir, open, doc.RootFS.DiffIDs[i])
			})
			if err != nil {
				errs[i] = fmt.Errorf("failed to extract layer %s: %w", doc.RootFS.DiffIDs[i], err)
				cancel()
			}
		})
	}
	wait.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return nil, err
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return s.put(&image)
}

// unpackBlob unpacks the layer that open returns into dir. It returns an error if the digest of the uncompressed layer,
// including data after the end of the tar archive, is not diffID.
func unpackBlob(ctx context.Context, dir string, open blob, diffID string) error {
	raw, err := open(ctx)
	if err != nil {
		return err
	}
	defer raw.Close()
	plain, err := decompress(raw)
	if err != nil {
		return err
	}
	defer plain.Close()
	sum := sha256.New()
	content := io.TeeReader(&spaceGuard{r: plain, dir: dir}, sum)
	if err := unpack(ctx, dir, content); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, content); err != nil {
		return fmt.Errorf("reading layer: %w", err)
	}
	// Read to the end, where the digest of the blob is verified.
	if _, err := io.Copy(io.Discard, raw); err != nil {
		return fmt.Errorf("reading layer: %w", err)
	}
	return checkSum(sum, diffID)
}

// spaceGuard is a reader that returns ENOSPC when the file system of dir is nearly full. It protects the disk while a
// layer or archive is unpacked, because a small compressed blob may expand without limit.
type spaceGuard struct {
	r    io.Reader
	dir  string
	next int64 // bytes until the next check of the disk
}

const (
	// guardStep is the number of bytes after which a spaceGuard checks the free space again.
	guardStep = 4 << 20
	// maxReserve is the free space to keep on a file system, or 2 % of it if that is less.
	maxReserve = 256 << 20
)

func (g *spaceGuard) Read(p []byte) (int, error) {
	if g.next <= 0 {
		var st unix.Statfs_t
		if err := unix.Statfs(g.dir, &st); err == nil {
			size, free := st.Blocks*uint64(st.Bsize), st.Bavail*uint64(st.Bsize)
			if free < min(size/50, maxReserve) || st.Files > 0 && st.Ffree < st.Files/50 {
				return 0, unix.ENOSPC
			}
			g.next = int64(min(guardStep, free/2+1))
		}
	}
	n, err := g.r.Read(p)
	g.next -= int64(n)
	return n, err
}

// checkSum returns an error unless sum, the SHA-256 of the content that was read, equals the digest want.
func checkSum(sum hash.Hash, want string) error {
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != want {
		return fmt.Errorf("wrong digest: got %s, want %s", got, want)
	}
	return nil
}

// decompress returns a reader of the uncompressed content of r. It detects gzip and zstd by the first bytes and returns
// other content unchanged.
func decompress(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	magic, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("reading layer: %w", err)
	}
	switch {
	case len(magic) >= 2 && magic[0] == 0x1f && magic[1] == 0x8b:
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, fmt.Errorf("reading layer: %w", err)
		}
		return z, nil
	case len(magic) == 4 && magic[0] == 0x28 && magic[1] == 0xb5 && magic[2] == 0x2f && magic[3] == 0xfd:
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, fmt.Errorf("reading layer: %w", err)
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(b), nil
}
