// Package validatingadmissionpolicystatus type-checks the expressions of validating admission
// policies against the types that they match, and writes warnings to the status. The warnings do
// not affect admission.
//
// https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/#type-checking
package validatingadmissionpolicystatus

import (
	"context"
	"errors"
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	applyv1 "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	listers "k8s.io/client-go/listers/admissionregistration/v1"
	"k8s.io/client-go/restmapper"

	"hyperkube/components/controllers/internal/control"
)

// fieldManager is the field manager of this controller's status updates.
const fieldManager = "validatingadmissionpolicy-status"

// Controller type-checks each policy after it was created or its spec was changed.
type Controller struct {
	*control.Loop
	env       control.Env
	policies  listers.ValidatingAdmissionPolicyLister
	discovery discovery.DiscoveryInterface
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. It gets schemas and
// kinds from d, which must not be nil, including those of custom resources. It sends no request until a policy exists.
// The caller then starts the informers and calls Run.
func New(env control.Env, d discovery.DiscoveryInterface) (*Controller, error) {
	if d == nil {
		return nil, errors.New("type checking requires a discovery client")
	}
	env = env.Defaulted()
	policies := env.Informers.Admissionregistration().V1().ValidatingAdmissionPolicies()
	c := &Controller{env: env, policies: policies.Lister(), discovery: d}
	c.Loop = control.NewLoop(env, "validatingadmissionpolicy-status", c.sync)
	return c, c.Watch(policies.Informer(), control.AnyEvent(func(p *admissionv1.ValidatingAdmissionPolicy) { c.Add(p.Name) }))
}

// sync type-checks the policy with the name, unless its status already contains the result for the current generation.
func (c *Controller) sync(ctx context.Context, name string) error {
	policy, err := c.policies.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || policy.Generation <= policy.Status.ObservedGeneration {
		return err
	}
	// Policies change rarely, so the discovery cache is created for each sync.
	checker := validating.TypeChecker{
		SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: c.discovery},
		RestMapper:     restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.discovery)),
	}
	checked := applyv1.TypeChecking()
	for _, w := range checker.Check(policy) {
		checked.WithExpressionWarnings(applyv1.ExpressionWarning().WithFieldRef(w.FieldRef).WithWarning(w.Warning))
	}
	apply := applyv1.ValidatingAdmissionPolicy(name).WithStatus(
		applyv1.ValidatingAdmissionPolicyStatus().WithObservedGeneration(policy.Generation).WithTypeChecking(checked))
	_, err = c.env.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().ApplyStatus(ctx, apply,
		metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("updating status of policy %s: %w", name, err)
	}
	return nil
}
