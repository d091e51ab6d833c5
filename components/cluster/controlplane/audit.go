package controlplane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"hyperkube/internal/host/atomicfile"
	"hyperkube/manifests"
)

// ensureAuditPolicy creates the audit policy, unless there is one, and the directory of the audit log. Only
// root may read either, because the log shows who does what in the cluster.
func (m *controlPlaneNode) ensureAuditPolicy() error {
	if err := os.MkdirAll(m.layout.AuditLogs(), 0o700); err != nil {
		return fmt.Errorf("creating directory of the audit log: %w", err)
	}
	path := m.layout.AuditPolicy()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err // nil if the operator's policy exists
	}
	if err := atomicfile.Write(atomicfile.File{Path: path, Data: manifests.AuditPolicy(), Mode: 0o600}); err != nil {
		return fmt.Errorf("writing audit policy: %w", err)
	}
	return nil
}
