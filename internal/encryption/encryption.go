// Package encryption is encryption at rest by an ordinary
// EncryptionConfiguration: making one for a new cluster, and loading one.
//
// https://kubernetes.io/docs/tasks/administer-cluster/encrypt-data/
package encryption

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"

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
