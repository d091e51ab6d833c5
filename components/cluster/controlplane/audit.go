package controlplane

import (
	"fmt"
	"os"

	"hyperkube/manifests"
)

// ensureAuditPolicy creates the audit policy file, unless it exists, and the directory of the audit log. Only root may
// read the file and the directory, because the log shows the requests of all users.
func (m *controlPlaneNode) ensureAuditPolicy() error {
	if err := os.MkdirAll(m.layout.AuditLogs(), 0o700); err != nil {
		return fmt.Errorf("creating directory of the audit log: %w", err)
	}
	return manifests.EnsureAuditPolicy(m.layout.AuditPolicy())
}
