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

	"hyperkube/internal/base/configfile"
)

// CABundle is a CA bundle file that is reloaded when it changes. It is safe for concurrent use.
type CABundle struct {
	path    string
	current atomic.Pointer[caPool]
}

// caPool is one version of a CA bundle file. Cached results of certificate verification refer to
// the caPool with which they were made, and become invalid with it.
type caPool struct {
	pool *x509.CertPool
	pem  []byte
}

// LoadCABundle reads the CA bundle file at path. It returns an error if the file contains no certificates or an
// invalid one. The caller must call Run so that the file is reloaded.
func LoadCABundle(path string) (*CABundle, error) {
	b := &CABundle{path: path}
	if err := b.reload(); err != nil {
		return nil, err
	}
	return b, nil
}

// PEM returns the content of the file as last loaded. It must not be modified.
func (b *CABundle) PEM() []byte { return b.current.Load().pem }

// reload reads the file. If the content is unchanged, or an error is returned because the file cannot be read, is
// invalid or has no certificates, the current bundle stays in use.
func (b *CABundle) reload() error {
	data, err := os.ReadFile(b.path)
	if err != nil {
		return fmt.Errorf("reading CA bundle: %w", err)
	}
	if old := b.current.Load(); old != nil && bytes.Equal(old.pem, data) {
		return nil
	}
	pool, n, err := parsePool(data)
	if err != nil {
		return fmt.Errorf("parsing CA bundle %s: %w", b.path, err)
	}
	if n == 0 {
		return fmt.Errorf("reading CA bundle: no certificates in %s", b.path)
	}
	b.current.Store(&caPool{pool: pool, pem: data})
	return nil
}

// parsePool returns a pool of the certificates in PEM data and their number, which may be 0. It skips other PEM
// blocks. It returns an error for an invalid certificate.
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

// Run watches the file until ctx is canceled, and calls changed after the content in use has changed. If the new
// content is invalid, Run logs an error and keeps the previous content, as it does if the file is deleted. It returns
// an error if the directory cannot be watched.
func (b *CABundle) Run(ctx context.Context, log *slog.Logger, changed func()) error {
	seen := sha256.Sum256(b.PEM())
	return configfile.Follow(ctx, b.path, log, func() {
		if err := b.reload(); err != nil && !errors.Is(err, os.ErrNotExist) {
			log.ErrorContext(ctx, "reloading CA bundle that verifies clients or front proxies failed; the previous bundle stays in use: fix the file, it is then reloaded", "file", b.path, "err", err)
		}
		if now := sha256.Sum256(b.PEM()); now != seen {
			seen = now
			log.InfoContext(ctx, "CA bundle that verifies clients or front proxies reloaded after a change of the file, it is in use now", "file", b.path)
			changed()
		}
	})
}
