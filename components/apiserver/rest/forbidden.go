package rest

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Allowed checks whether the user of a is authorized for a, a request that another request implies, such as
// impersonating a group. It returns nil if so, and otherwise a Forbidden error with the reason and any error of the
// authorizer.
func Allowed(ctx context.Context, by authorizer.UnconditionalAuthorizer, a authorizer.Attributes) error {
	decision, reason, err := by.Authorize(ctx, a)
	switch {
	case decision == authorizer.DecisionAllow:
		return nil
	case err != nil && reason != "":
		reason = fmt.Sprintf("%v: %s", err, reason)
	case err != nil:
		reason = err.Error()
	}
	return Forbidden(a, reason)
}

// Forbidden returns the error 403 for a request with the attributes a that is not authorized, with
// the same message as upstream. reason is the authorizer's reason and may be empty.
func Forbidden(a authorizer.Attributes, reason string) error {
	name := ""
	if u := a.GetUser(); u != nil {
		name = u.GetName()
	}
	if !a.IsResourceRequest() {
		msg := fmt.Sprintf("User %q cannot %s path %q", name, a.GetVerb(), a.GetPath())
		if reason != "" {
			msg += ": " + reason
		}
		return apierrors.NewForbidden(schema.GroupResource{}, "", fmt.Errorf("%s", msg))
	}
	resource := a.GetResource()
	if sub := a.GetSubresource(); sub != "" {
		resource += "/" + sub
	}
	msg := fmt.Sprintf("User %q cannot %s resource %q in API group %q", name, a.GetVerb(), resource, a.GetAPIGroup())
	if ns := a.GetNamespace(); ns != "" {
		msg += fmt.Sprintf(" in the namespace %q", ns)
	} else {
		msg += " at the cluster scope"
	}
	if reason != "" {
		msg += ": " + reason
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()}, a.GetName(), fmt.Errorf("%s", msg))
}
