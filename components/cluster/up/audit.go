package up

import (
	"path/filepath"

	"github.com/spf13/pflag"

	"hyperkube/components/apiserver/audit"
	"hyperkube/manifests"
)

// auditConfig returns the configuration of the API server's audit log. Log files are rotated at 100 MB; at most 10 are
// kept, each for up to 30 days, as on control plane nodes of `init`. It writes audit-policy.yaml in the data directory,
// unless the file exists. Without --audit-log-path, it returns the zero value, which disables auditing.
func (c *clusterRun) auditConfig() (audit.Config, error) {
	if c.auditLog == "" {
		return audit.Config{}, nil
	}
	var cfg audit.Config
	cfg.Flags(pflag.NewFlagSet("", pflag.ContinueOnError)) // sets the defaults
	cfg.Path, cfg.PolicyFile = c.auditLog, filepath.Join(c.layout.Data, "audit-policy.yaml")
	cfg.MaxAge, cfg.MaxBackups, cfg.MaxSize = 30, 10, 100
	return cfg, manifests.EnsureAuditPolicy(cfg.PolicyFile)
}
