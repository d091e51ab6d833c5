// Package validatingadmissionpolicystatus checks the expressions of validating
// admission policies against the types that they will meet, and writes what it
// finds into their status. Expressions that no type fits are admitted all the
// same: their author is told.
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

const fieldManager = "validatingadmissionpolicy-status"

// Controller syncs policies. Make it with New.
type Controller struct {
	*control.Loop
	env       control.Env
	policies  listers.ValidatingAdmissionPolicyLister
	discovery discovery.DiscoveryInterface
}

// New makes the controller. Schemas and kinds come from discovery, those of
// custom resources too; nothing is asked for before there is a policy.
func New(env control.Env, d discovery.DiscoveryInterface) (*Controller, error) {
	if d == nil {
		return nil, errors.New("type checking takes discovery")
	}
	env = env.Defaulted()
	policies := env.Informers.Admissionregistration().V1().ValidatingAdmissionPolicies()
	c := &Controller{env: env, policies: policies.Lister(), discovery: d}
	c.Loop = control.NewLoop(env, "validatingadmissionpolicy-status", c.sync)
	return c, c.Watch(policies.Informer(), control.Every(func(p *admissionv1.ValidatingAdmissionPolicy) { c.Add(p.Name) }))
}

func (c *Controller) sync(ctx context.Context, name string) error {
	policy, err := c.policies.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || policy.Generation <= policy.Status.ObservedGeneration {
		return err
	}
	// Policies change seldom, so what is served is asked anew each time.
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
		return fmt.Errorf("writing the status of policy %s: %w", name, err)
	}
	return nil
}
