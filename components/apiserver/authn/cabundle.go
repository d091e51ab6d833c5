package authn

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"

	"hyperkube/internal/configfile"
)

// CABundle is a file of certificate authorities that is read again when it
// changes. Its methods are safe for several goroutines.
type CABundle struct {
	path    string
	current atomic.Pointer[caPool]
}

// caPool is one content of the file. Whoever remembers what it verified
// remembers with which pool.
type caPool struct {
	pool *x509.CertPool
	pem  []byte
}

// LoadCABundle reads the file for the first time. Call Run to follow it.
func LoadCABundle(path string) (*CABundle, error) {
	b := &CABundle{path: path}
	if err := b.reload(); err != nil {
		return nil, err
	}
	return b, nil
}

// PEM is the present content. It is not to be changed.
func (b *CABundle) PEM() []byte { return b.current.Load().pem }

func (b *CABundle) reload() error {
	data, err := os.ReadFile(b.path)
	if err != nil {
		return fmt.Errorf("reading certificate authorities: %w", err)
	}
	if old := b.current.Load(); old != nil && bytes.Equal(old.pem, data) {
		return nil
	}
	pool, n, err := parsePool(data)
	if err != nil {
		return fmt.Errorf("reading certificate authorities in %s: %w", b.path, err)
	}
	if n == 0 {
		return fmt.Errorf("reading certificate authorities: there are none in %s", b.path)
	}
	b.current.Store(&caPool{pool: pool, pem: data})
	return nil
}

func parsePool(data []byte) (*x509.CertPool, int, error) {
	pool, n := x509.NewCertPool(), 0
	for {
		var block *pem.Block
		block, data = pem.Decode(data)
		if block == nil {
			return pool, n, nil
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, 0, err
		}
		pool.AddCert(cert)
		n++
	}
}

// Run follows the file until ctx ends, and calls changed whenever it has been
// read again. A content that cannot be used is logged and the one before stays.
func (b *CABundle) Run(ctx context.Context, log *slog.Logger, changed func()) error {
	seen := sha256.Sum256(b.PEM())
	return configfile.Follow(ctx, b.path, log, func() {
		if err := b.reload(); err != nil && !errors.Is(err, os.ErrNotExist) {
			log.ErrorContext(ctx, "certificate authorities not reloaded", "file", b.path, "error", err)
		}
		if now := sha256.Sum256(b.PEM()); now != seen {
			seen = now
			log.InfoContext(ctx, "certificate authorities reloaded", "file", b.path)
			changed()
		}
	})
}
