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

// maxDocument bounds configurations and manifests, as registries do.
const maxDocument = 8 << 20

// blob opens one layer as it is stored, compressed or not.
type blob func(ctx context.Context) (io.ReadCloser, error)

// assemble unpacks the layers that are missing and records the image. Each
// blob is one layer of the configuration, in its order.
func (s *Store) assemble(ctx context.Context, config []byte, layers []blob, image Image) (*Image, error) {
	if len(config) > maxDocument {
		return nil, errors.New("the image's configuration is too large")
	}
	var doc document
	if err := json.Unmarshal(config, &doc); err != nil {
		return nil, fmt.Errorf("reading the image's configuration: %w", err)
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
			return nil, fmt.Errorf("bad layer digest %q in the image's configuration", id)
		}
		image.Layers = append(image.Layers, layerName(id))
	}
	defer s.Hold()()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wait sync.WaitGroup
	slots := make(chan struct{}, 3) // as many as other runtimes take at once
	errs := make([]error, len(layers))
	for i, open := range layers {
		wait.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			err := s.makeLayer(ctx, image.Layers[i], true, func(dir string) error {
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

// unpackBlob unpacks a layer into dir and checks that its content is what the
// digest says. The rest of a stream, after the archive's end, counts too.
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
		return fmt.Errorf("reading the layer: %w", err)
	}
	// The blob's own digest is verified at its end.
	if _, err := io.Copy(io.Discard, raw); err != nil {
		return fmt.Errorf("reading the layer: %w", err)
	}
	return checkSum(sum, diffID)
}

// spaceGuard ends a layer, or an archive, before it fills the disk: what a few bytes
// unpack to may have no end.
type spaceGuard struct {
	r    io.Reader
	dir  string
	next int64 // bytes until the disk is looked at
}

const (
	guardStep = 4 << 20
	// maxReserve of a file system is left to others, or a fiftieth if that is
	// less.
	maxReserve = 256 << 20
)

func (g *spaceGuard) Read(p []byte) (int, error) {
	if g.next <= 0 {
		var st unix.Statfs_t
		if err := unix.Statfs(g.dir, &st); err == nil {
			size, free := st.Blocks*uint64(st.Bsize), st.Bavail*uint64(st.Bsize)
			if free < min(size/50, maxReserve) || st.Files > 0 && st.Ffree < st.Files/50 {
				return 0, fmt.Errorf("it would fill the disk: %w", unix.ENOSPC)
			}
			g.next = int64(min(guardStep, free/2+1))
		}
	}
	n, err := g.r.Read(p)
	g.next -= int64(n)
	return n, err
}

func checkSum(sum hash.Hash, want string) error {
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != want {
		return fmt.Errorf("wrong digest: got %s, want %s", got, want)
	}
	return nil
}

// decompress tells by the first bytes how a layer is compressed.
func decompress(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	magic, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("reading the layer: %w", err)
	}
	switch {
	case len(magic) >= 2 && magic[0] == 0x1f && magic[1] == 0x8b:
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, fmt.Errorf("reading the layer: %w", err)
		}
		return z, nil
	case len(magic) == 4 && magic[0] == 0x28 && magic[1] == 0xb5 && magic[2] == 0x2f && magic[3] == 0xfd:
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, fmt.Errorf("reading the layer: %w", err)
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(b), nil
}
