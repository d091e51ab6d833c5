package manifests

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"hyperkube/internal/host/atomicfile"
)

//go:embed audit-policy.yaml
var auditPolicy []byte

// EnsureAuditPolicy writes the default audit policy of the API server, which logs the metadata of requests, to
// the file path, unless the file exists. Only the owner may read it.
func EnsureAuditPolicy(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err // nil if the operator's policy exists
	}
	if err := atomicfile.Write(atomicfile.File{Path: path, Data: auditPolicy, Mode: 0o600}); err != nil {
		return fmt.Errorf("writing audit policy: %w", err)
	}
	return nil
}
