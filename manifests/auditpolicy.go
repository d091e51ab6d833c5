package manifests

import _ "embed"

//go:embed audit-policy.yaml
var auditPolicy []byte

// AuditPolicy returns the default audit policy of the API server, which logs the metadata of requests.
// The caller must not modify it.
func AuditPolicy() []byte { return auditPolicy }
