package controlplane

import (
	"fmt"
	"os"

	"hyperkube/manifests"
)

// ensureAuditPolicy creates the audit policy, unless there is one, and the directory of the audit log. Only
// root may read either, because the log shows who does what in the cluster.
func (m *controlPlaneNode) ensureAuditPolicy() error {
	if err := os.MkdirAll(m.layout.AuditLogs(), 0o700); err != nil {
		return fmt.Errorf("creating directory of the audit log: %w", err)
	}
	return manifests.EnsureAuditPolicy(m.layout.AuditPolicy())
}
