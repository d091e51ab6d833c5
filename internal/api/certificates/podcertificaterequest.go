package certificates

import (
	"context"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

// defaultPodExpiration is the default maximum lifetime of a pod certificate in seconds.
const defaultPodExpiration = 24 * 60 * 60

func podCertificateRequest() api.Kind[*certificatesv1.PodCertificateRequest] {
	spec := certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()
	return api.Kind[*certificatesv1.PodCertificateRequest]{
		Names:   api.Names{Kind: "PodCertificateRequest", Plural: "podcertificaterequests"},
		Group:   group,
		Version: version,
		Scope:   api.Namespaced,
		New:     func() *certificatesv1.PodCertificateRequest { return &certificatesv1.PodCertificateRequest{} },
		NewList: func() runtime.Object { return &certificatesv1.PodCertificateRequestList{} },

		Default: func(r *certificatesv1.PodCertificateRequest) {
			if r.Spec.MaxExpirationSeconds == nil {
				s := int32(defaultPodExpiration)
				r.Spec.MaxExpirationSeconds = &s
			}
		},
		PrepareCreate: func(_ context.Context, r *certificatesv1.PodCertificateRequest) {
			r.Status = certificatesv1.PodCertificateRequestStatus{}
		},
		Validate: func(_ context.Context, r *certificatesv1.PodCertificateRequest) field.ErrorList {
			return checkPodRequest(r)
		},
		Update: api.KindUpdate[*certificatesv1.PodCertificateRequest]{
			Prepare: func(_ context.Context, r, old *certificatesv1.PodCertificateRequest) {
				old.Status.DeepCopyInto(&r.Status)
			},
			Validate: func(_ context.Context, r, old *certificatesv1.PodCertificateRequest) field.ErrorList {
				if apiequality.Semantic.DeepEqual(r.Spec, old.Spec) {
					return nil
				}
				return field.ErrorList{field.Invalid(field.NewPath("spec"), internalSpec(&r.Spec), apivalidation.FieldImmutableErrorMsg)}
			},
			ResetFields: [][]string{{"status"}},
		},
		ForbidUnconditionalUpdate: true,
		Views: map[string]api.KindUpdate[*certificatesv1.PodCertificateRequest]{
			"status": {
				Prepare: func(_ context.Context, r, old *certificatesv1.PodCertificateRequest) {
					old.Spec.DeepCopyInto(&r.Spec)
					metav1.ResetObjectMetaForStatus(&r.ObjectMeta, &old.ObjectMeta)
				},
				Validate: func(_ context.Context, r, old *certificatesv1.PodCertificateRequest) field.ErrorList {
					return checkPodRequestStatus(r, old)
				},
				ResetFields: [][]string{{"metadata"}, {"spec"}},
			},
		},
		Fields: func(r *certificatesv1.PodCertificateRequest) fields.Set {
			return fields.Set{
				"spec.signerName": r.Spec.SignerName,
				"spec.podName":    r.Spec.PodName,
				"spec.nodeName":   string(r.Spec.NodeName),
			}
		},
		FieldNames: []string{"spec.signerName", "spec.podName", "spec.nodeName"},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("PodName", "string", spec["podName"]),
			api.Column("ServiceAccountName", "string", spec["serviceAccountName"]),
			api.Column("NodeName", "string", spec["nodeName"]),
			api.Column("SignerName", "string", spec["signerName"]),
			api.Column("State", "string", "Is the request Pending, Issued, Denied, or Failed?"),
			api.Column("UnverifiedUserAnnotations", "string", spec["unverifiedUserAnnotations"]),
		},
		Row: func(r *certificatesv1.PodCertificateRequest) []any {
			state := "Pending"
			for _, c := range r.Status.Conditions {
				if slices.Contains(outcomes, c.Type) {
					state = c.Type
				}
			}
			return []any{r.Name, r.Spec.PodName, r.Spec.ServiceAccountName, string(r.Spec.NodeName), r.Spec.SignerName, state, labels.FormatLabels(r.Spec.UnverifiedUserAnnotations)}
		},
	}
}

// internalSpec returns a spec in the form in which upstream's error messages show it, with two
// fields of v1beta1 that v1 does not have.
func internalSpec(s *certificatesv1.PodCertificateRequestSpec) any {
	return struct {
		SignerName                       string
		PodName                          string
		PodUID                           types.UID
		ServiceAccountName               string
		ServiceAccountUID                types.UID
		NodeName                         types.NodeName
		NodeUID                          types.UID
		MaxExpirationSeconds             *int32
		PKIXPublicKey, ProofOfPossession []byte
		StubPKCS10Request                []byte
		UnverifiedUserAnnotations        map[string]string
	}{
		s.SignerName, s.PodName, s.PodUID, s.ServiceAccountName, s.ServiceAccountUID, s.NodeName, s.NodeUID,
		s.MaxExpirationSeconds, nil, nil, s.StubPKCS10Request, s.UnverifiedUserAnnotations,
	}
}

// outcomes are the condition types of a finished request, of which it has one.
var outcomes = []string{
	certificatesv1.PodCertificateRequestConditionTypeIssued,
	certificatesv1.PodCertificateRequestConditionTypeDenied,
	certificatesv1.PodCertificateRequestConditionTypeFailed,
}

// outcome returns the condition type with which a request has finished, or an empty string if it is
// pending.
func outcome(r *certificatesv1.PodCertificateRequest) string {
	for _, t := range outcomes {
		for _, c := range r.Status.Conditions {
			if c.Type == t && c.Status == metav1.ConditionTrue {
				return t
			}
		}
	}
	return ""
}
