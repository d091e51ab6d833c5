// Package encryption implements encryption at rest with an EncryptionConfiguration file. It creates
// the file for a new cluster and loads it.
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

	"hyperkube/internal/host/atomicfile"
)

// template is the EncryptionConfiguration of a new cluster, with %s for the key. It encrypts
// Secrets. The identity provider is last, so that Secrets that were stored without encryption
// remain readable.
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

// Ensure creates an EncryptionConfiguration at path that encrypts Secrets with a new random key, if the file does not
// exist, and the directory of path. The file has mode 0600 and is synced to disk. Ensure never replaces an existing
// file, because without its key the Secrets are lost; it does not check its content either.
func Ensure(path string) error {
	switch _, err := os.Stat(path); {
	case err == nil:
		return nil
	case !errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("checking encryption configuration: %w", err)
	}
	key := make([]byte, 32)
	rand.Read(key) // never fails
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("creating directory of the encryption configuration: %w", err)
	}
	data := fmt.Appendf(nil, template, base64.StdEncoding.EncodeToString(key))
	if err := atomicfile.Write(atomicfile.File{Path: path, Data: data, Mode: 0o600}); err != nil {
		return fmt.Errorf("writing encryption configuration: %w", err)
	}
	return nil
}
