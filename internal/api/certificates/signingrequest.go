package certificates

import (
	"context"
	"maps"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"

	"hyperkube/internal/api"
)

// csr abbreviates the Go type of the kind CertificateSigningRequest.
type csr = *certificatesv1.CertificateSigningRequest

func signingRequest() api.Kind[csr] {
	spec := certificatesv1beta1.CertificateSigningRequestSpec{}.SwaggerDoc()
	return api.Kind[csr]{
		Names:   api.Names{Kind: "CertificateSigningRequest", Plural: "certificatesigningrequests", ShortNames: []string{"csr"}},
		Group:   group,
		Version: version,
		Scope:   api.Cluster,
		New:     func() csr { return &certificatesv1.CertificateSigningRequest{} },
		NewList: func() runtime.Object { return &certificatesv1.CertificateSigningRequestList{} },

		PrepareCreate: prepareSigningRequest,
		// All names are accepted.
		ValidateName: func(string, bool) []string { return nil },
		Validate: func(_ context.Context, r csr) field.ErrorList {
			return checkSigningRequest(r, nil)
		},
		Update: api.KindUpdate[csr]{
			Prepare: func(_ context.Context, r, old csr) {
				old.Spec.DeepCopyInto(&r.Spec)
				old.Status.DeepCopyInto(&r.Status)
			},
			Validate:    func(_ context.Context, r, old csr) field.ErrorList { return checkUpdate(r, old, objectEndpoint) },
			ResetFields: [][]string{{"spec"}, {"status"}},
		},
		Views: map[string]api.KindUpdate[csr]{
			"status": {
				Prepare: func(_ context.Context, r, old csr) {
					old.Spec.DeepCopyInto(&r.Spec)
					keepConditions(r, old, certificatesv1.CertificateApproved)
					keepConditions(r, old, certificatesv1.CertificateDenied)
					stampConditions(r, old)
				},
				Validate:    func(_ context.Context, r, old csr) field.ErrorList { return checkUpdate(r, old, statusEndpoint) },
				ResetFields: [][]string{{"spec"}},
			},
			"approval": {
				Prepare: func(_ context.Context, r, old csr) {
					old.Spec.DeepCopyInto(&r.Spec)
					r.Status.Certificate = slices.Clone(old.Status.Certificate)
					stampConditions(r, old)
				},
				Validate:    func(_ context.Context, r, old csr) field.ErrorList { return checkUpdate(r, old, approvalEndpoint) },
				ResetFields: [][]string{{"spec"}, {"status", "certificate"}},
			},
		},
		Fields:     func(r csr) fields.Set { return fields.Set{"spec.signerName": r.Spec.SignerName} },
		FieldNames: []string{"spec.signerName"},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.AgeColumn,
			api.Column("SignerName", "string", spec["signerName"]),
			api.Column("Requestor", "string", spec["request"]),
			api.Column("RequestedDuration", "string", spec["expirationSeconds"]),
			api.Column("Condition", "string", certificatesv1beta1.CertificateSigningRequestStatus{}.SwaggerDoc()["conditions"]),
		},
		Row: signingRequestRow,
	}
}

// prepareSigningRequest sets the user fields of a new request to the authenticated user of ctx,
// because signers trust them, and clears the status.
func prepareSigningRequest(ctx context.Context, r csr) {
	r.Spec.Username, r.Spec.UID, r.Spec.Groups, r.Spec.Extra = "", "", nil, nil
	if u, ok := request.UserFrom(ctx); ok {
		r.Spec.Username, r.Spec.UID, r.Spec.Groups = u.GetName(), u.GetUID(), slices.Clone(u.GetGroups())
		if extra := u.GetExtra(); len(extra) > 0 {
			r.Spec.Extra = make(map[string]certificatesv1.ExtraValue, len(extra))
			for _, k := range slices.Sorted(maps.Keys(extra)) {
				r.Spec.Extra[k] = slices.Clone(extra[k])
			}
		}
	}
	r.Status = certificatesv1.CertificateSigningRequestStatus{}
}

// keepConditions reverts changes to conditions of the type t in a status update. If the number of
// these conditions has changed, it does nothing, and validation rejects the update.
func keepConditions(r, old csr, t certificatesv1.RequestConditionType) {
	was := conditions(old, t)
	if len(was) != len(conditions(r, t)) {
		return
	}
	n := 0
	for i := range r.Status.Conditions {
		if r.Status.Conditions[i].Type == t {
			r.Status.Conditions[i] = was[n]
			n++
		}
	}
}

// stampConditions sets missing timestamps of conditions to now. The transition time of a condition
// whose status has not changed is taken from old.
func stampConditions(r, old csr) {
	now := metav1.Now()
	for i := range r.Status.Conditions {
		c := &r.Status.Conditions[i]
		if c.LastUpdateTime.IsZero() {
			c.LastUpdateTime = now
		}
		if !c.LastTransitionTime.IsZero() {
			continue
		}
		c.LastTransitionTime = now
		for _, was := range old.Status.Conditions {
			if was.Type == c.Type && was.Status == c.Status && !was.LastTransitionTime.IsZero() {
				c.LastTransitionTime = was.LastTransitionTime
				break
			}
		}
	}
}

// signingRequestRow returns the cells of a request.
func signingRequestRow(r csr) []any {
	signer, wish := "<none>", "<none>"
	if r.Spec.SignerName != "" {
		signer = r.Spec.SignerName
	}
	if s := r.Spec.ExpirationSeconds; s != nil {
		wish = duration.HumanDuration(time.Duration(*s) * time.Second)
	}
	return []any{r.Name, api.Age(r.CreationTimestamp), signer, r.Spec.Username, wish, signingRequestState(r)}
}

// signingRequestState returns the state of a request for the table: Pending, Approved or Denied, with ",Failed" and
// ",Issued" if they apply.
func signingRequestState(r csr) string {
	has := func(t certificatesv1.RequestConditionType) bool { return len(conditions(r, t)) > 0 }
	state := "Pending"
	switch {
	case has(certificatesv1.CertificateDenied):
		state = "Denied"
	case has(certificatesv1.CertificateApproved):
		state = "Approved"
	}
	if has(certificatesv1.CertificateFailed) {
		state += ",Failed"
	}
	if len(r.Status.Certificate) > 0 {
		state += ",Issued"
	}
	return state
}

// conditions returns the conditions of r that have the type t.
func conditions(r csr, t certificatesv1.RequestConditionType) []certificatesv1.CertificateSigningRequestCondition {
	var found []certificatesv1.CertificateSigningRequestCondition
	for _, c := range r.Status.Conditions {
		if c.Type == t {
			found = append(found, c)
		}
	}
	return found
}
