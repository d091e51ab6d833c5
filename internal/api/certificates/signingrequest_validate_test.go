package certificates

import (
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

// TestUpdateEndpoints checks that a signer cannot approve, and an approver cannot sign.
func TestUpdateEndpoints(t *testing.T) {
	old := &certificatesv1.CertificateSigningRequest{}
	old.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
		{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "R", Message: "m"},
	}
	const (
		modified = "status.conditions: updates may not modify a condition of type \"Approved\"\n"
		signed   = "status.certificate: updates may not set certificate content"
	)
	reason := func(r csr) { r.Status.Conditions[0].Reason = "Other" }
	sign := func(r csr) { r.Status.Certificate = []byte("x") }
	for name, tc := range map[string]struct {
		by     endpoint
		change func(csr)
		want   string // prefix of an expected error
		not    string // prefix that no error may have
	}{
		"a reason by the signer":        {statusEndpoint, reason, modified, ""},
		"a reason by the approver":      {approvalEndpoint, reason, "", modified},
		"a certificate by the signer":   {statusEndpoint, sign, "", signed},
		"a certificate by the approver": {approvalEndpoint, sign, signed, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := old.DeepCopy()
			tc.change(r)
			begins := func(with string) bool {
				for _, text := range found(checkUpdate(r, old, tc.by)) {
					if strings.HasPrefix(text, with) {
						return true
					}
				}
				return false
			}
			if tc.want != "" && !begins(tc.want) || tc.not != "" && begins(tc.not) {
				t.Errorf("findings %q", found(checkUpdate(r, old, tc.by)))
			}
		})
	}
}
