// Package encryption is encryption at rest by an ordinary
// EncryptionConfiguration: making one for a new cluster, and loading one.
//
// https://kubernetes.io/docs/tasks/administer-cluster/encrypt-data/
package encryption

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"

	"hyperkube/internal/atomicfile"
)

// template encrypts Secrets. The identity provider comes last so that what was
// stored before is still readable.
const template = `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - secretbox:
      keys:
      - name: key1
        secret: %s
  - identity: {}
`

// Ensure makes path an EncryptionConfiguration that encrypts Secrets under a
// new random key, mode 0600 and synced to disk, if there is no such file yet.
// It never replaces one: without its key Secrets are lost.
func Ensure(path string) error {
	switch _, err := os.Stat(path); {
	case err == nil:
		return nil
	case !errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("looking for the encryption configuration: %w", err)
	}
	key := make([]byte, 32)
	rand.Read(key) // never fails
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("making the directory of the encryption configuration: %w", err)
	}
	data := fmt.Appendf(nil, template, base64.StdEncoding.EncodeToString(key))
	if err := atomicfile.Write(atomicfile.File{Path: path, Data: data, Mode: 0o600}); err != nil {
		return fmt.Errorf("keeping the encryption configuration: %w", err)
	}
	return nil
}

// Transformers turns stored values into what is on the disk and back. Its
// methods are safe for several goroutines.
type Transformers struct {
	byResource encryptionconfig.StaticTransformers
	checks     []healthz.HealthChecker
}

// Load reads an EncryptionConfiguration with all of upstream's providers. With
// a key management service it starts goroutines that end with ctx, even when
// it returns an error. serverID tells such a service who asks; it may be empty
// otherwise.
func Load(ctx context.Context, path, serverID string) (*Transformers, error) {
	cfg, err := encryptionconfig.LoadEncryptionConfig(ctx, path, false, serverID)
	if err != nil {
		return nil, fmt.Errorf("loading the encryption configuration %s: %w", path, err)
	}
	return &Transformers{byResource: cfg.Transformers, checks: cfg.HealthChecks}, nil
}

// For returns the transformer of a resource, never nil. It is to be asked once
// for each resource. For one that the configuration does not name, and for a
// nil Transformers, values stay as they are; reading one that is encrypted
// nevertheless is an error.
func (t *Transformers) For(gr schema.GroupResource) value.Transformer {
	if t == nil {
		return encryptionconfig.StaticTransformers(nil).TransformerForResource(gr)
	}
	return t.byResource.TransformerForResource(gr)
}

// Encrypts tells whether the configuration names the resource, itself or by a
// wildcard. Values of other resources need no transformer.
func (t *Transformers) Encrypts(gr schema.GroupResource) bool {
	if t == nil {
		return false
	}
	for _, r := range []schema.GroupResource{gr, {Group: gr.Group, Resource: "*"}, {Group: "*", Resource: "*"}} {
		if t.byResource[r] != nil {
			return true
		}
	}
	return false
}

// Checks are the health checks of key management services, for /readyz.
func (t *Transformers) Checks() []healthz.HealthChecker {
	if t == nil {
		return nil
	}
	return t.checks
}
