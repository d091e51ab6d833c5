package admission

import (
	"context"
	"errors"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"
	psa "k8s.io/pod-security-admission/admission"
	psaload "k8s.io/pod-security-admission/admission/api/load"
	psaapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// podSecurity is the plugin PodSecurity. It enforces the Pod Security Standard that the labels of a namespace select
// for pods. For objects that contain pod templates, such as Deployments, it only warns and audits.
//
// https://kubernetes.io/docs/concepts/security/pod-security-admission/
type podSecurity struct {
	operations
	standard *psa.Admission
	// subjects are the checked resources: namespaces, pods, and those with a pod template.
	subjects map[schema.GroupResource]bool
}

// newPodSecurity creates the plugin PodSecurity from its configuration file. Without a file, namespaces without
// labels are not restricted. It returns an error if the file is invalid.
func newPodSecurity(cfg *Config) (admission.Interface, error) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return nil, fmt.Errorf("creating pod security evaluator: %w", err)
	}
	// Without a configuration file the privileged level applies.
	configuration, err := psaload.LoadFromData(cfg.Files["PodSecurity"])
	if err != nil {
		return nil, err
	}
	measured, err := newSecurityMetrics(cfg.Metrics, psaapi.GetAPIVersion())
	if err != nil {
		return nil, err
	}
	extractor := psa.DefaultPodSpecExtractor{}
	core := cfg.Informers.Core().V1()
	a := &psa.Admission{
		Configuration:    configuration,
		Evaluator:        evaluator,
		Metrics:          measured,
		PodSpecExtractor: extractor,
		NamespaceGetter:  psa.NamespaceGetterFromListerAndClient(core.Namespaces().Lister(), cfg.Kube),
		PodLister:        cfg.pods(),
	}
	if err := a.CompleteConfiguration(); err != nil {
		return nil, err
	}
	if err := a.ValidateConfiguration(); err != nil {
		return nil, err
	}
	p := &podSecurity{operations: onCreateUpdate, standard: a, subjects: map[schema.GroupResource]bool{
		{Resource: "namespaces"}: true, {Resource: "pods"}: true,
	}}
	for _, gr := range extractor.PodSpecResources() {
		p.subjects[gr] = true
	}
	return p, nil
}

// Validate rejects a pod that violates the level that its namespace enforces, and a namespace with invalid Pod
// Security labels. It adds warnings and audit annotations for the levels that the namespace warns about and audits.
func (p *podSecurity) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !p.subjects[a.GetResource().GroupResource()] {
		return nil
	}
	result := p.standard.Validate(ctx, podAttributes{a})
	for _, w := range result.Warnings {
		warning.AddWarning(ctx, "", w)
	}
	for k, v := range result.AuditAnnotations {
		// A second value for the same key is rejected, which is harmless.
		_ = a.AddAnnotation(psaapi.AuditAnnotationPrefix+k, v)
	}
	if result.Allowed {
		return nil
	}
	err := forbid(a, "Not allowed by PodSecurity")
	var status *apierrors.StatusError
	if r := result.Result; r != nil && errors.As(err, &status) {
		if r.Message != "" {
			status.ErrStatus.Message = r.Message
		}
		if r.Reason != "" {
			status.ErrStatus.Reason = r.Reason
		}
		if r.Details != nil {
			status.ErrStatus.Details = r.Details
		}
		if r.Code != 0 {
			status.ErrStatus.Code = r.Code
		}
	}
	return err
}

// podAttributes adapts admission.Attributes to the interface of the Pod Security library.
type podAttributes struct{ admission.Attributes }

// GetOperation implements the interface of the Pod Security library. It returns the operation in the type of the API.
func (p podAttributes) GetOperation() admissionv1.Operation {
	return admissionv1.Operation(p.Attributes.GetOperation())
}

// GetObject implements the interface of the Pod Security library. It returns the new object and no error.
func (p podAttributes) GetObject() (runtime.Object, error) { return p.Attributes.GetObject(), nil }

// GetOldObject implements the interface of the Pod Security library. It returns the object before the update and no
// error.
func (p podAttributes) GetOldObject() (runtime.Object, error) {
	return p.Attributes.GetOldObject(), nil
}

// GetUserName implements the interface of the Pod Security library. It returns the user's name.
func (p podAttributes) GetUserName() string { return p.GetUserInfo().GetName() }
