package up

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"hyperkube/components/apiserver/audit"
	"hyperkube/internal/host/atomicfile"
	"hyperkube/manifests"
)

// auditConfig returns the configuration of the API server's audit log, with the retention of control plane
// nodes. It creates the audit policy, unless there is one. Without --audit-log-path, it returns the zero
// value, which disables auditing.
func (c *clusterRun) auditConfig() (audit.Config, error) {
	if c.auditLog == "" {
		return audit.Config{}, nil
	}
	var cfg audit.Config
	cfg.Flags(pflag.NewFlagSet("", pflag.ContinueOnError)) // sets the defaults
	cfg.Path, cfg.PolicyFile = c.auditLog, filepath.Join(c.layout.Data, "audit-policy.yaml")
	cfg.MaxAge, cfg.MaxBackups, cfg.MaxSize = 30, 10, 100
	if _, err := os.Stat(cfg.PolicyFile); errors.Is(err, fs.ErrNotExist) {
		if err := atomicfile.Write(atomicfile.File{Path: cfg.PolicyFile, Data: manifests.AuditPolicy(), Mode: 0o600}); err != nil {
			return cfg, fmt.Errorf("writing audit policy: %w", err)
		}
	}
	return cfg, nil
}
