package certificates

import (
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

// TestWays holds that who may sign does not approve by that, nor who may approve
// sign.
func TestWays(t *testing.T) {
	old := &certificatesv1.CertificateSigningRequest{}
	old.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
		{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "R", Message: "m"},
	}
	const (
		modified = "status.conditions: updates may not modify a condition of type \"Approved\"\n"
		signed   = "status.certificate: updates may not set certificate content"
	)
	reason := func(r signing) { r.Status.Conditions[0].Reason = "Other" }
	sign := func(r signing) { r.Status.Certificate = []byte("x") }
	for name, tc := range map[string]struct {
		by     way
		change func(signing)
		want   string // how a finding begins
		not    string // how none does
	}{
		"a reason by the signer":        {itsStatus, reason, modified, ""},
		"a reason by the approver":      {itsApproval, reason, "", modified},
		"a certificate by the signer":   {itsStatus, sign, "", signed},
		"a certificate by the approver": {itsApproval, sign, signed, ""},
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
