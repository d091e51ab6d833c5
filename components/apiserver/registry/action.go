package registry

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/internal/api"
)

// Action handles a create request for something that is not stored: a review (Subresource is
// empty), or a subresource such as serviceaccounts/token. The API server decodes and defaults the
// body (and, for a review, calls Resource.Default and Resource.Validate), and calls mutating
// admission before Run. The request is already authorized. The context contains the user and
// request info, see k8s.io/apiserver/pkg/endpoints/request.
type Action struct {
	// Resource and Subresource of the action, e.g. "serviceaccounts" and "token". Subresource is
	// empty for reviews.
	Resource    schema.GroupVersionResource
	Subresource string
	// Kind of the request and response body, e.g. authentication.k8s.io/v1 TokenRequest.
	Kind schema.GroupVersionKind
	// FormerVersion is an older version with the same schema that is accepted in requests. Empty means
	// none.
	FormerVersion string
	// New returns an empty body.
	New func() runtime.Object
	// Default sets default values in the body. It may be nil.
	Default func(obj runtime.Object)
	// Run handles the request. The result is sent with status 201. A *metav1.Status is sent with
	// its own code. Errors should be Status errors.
	Run func(ctx context.Context, call ActionCall) (runtime.Object, error)
}

// ActionCall is a request for an Action, such as an eviction, as its function gets it.
type ActionCall struct {
	// Namespace and Name are from the path. If the path has no name, it is the name in the body.
	Namespace, Name string
	// Object is the decoded body. The action owns it.
	Object runtime.Object
	// Resource is the resource of the requested subresource.
	Resource *Resource
	// DryRun is set if the request is a dry run, on which the action must write nothing.
	DryRun bool
	// DryRuns is the dryRun parameter of the query.
	DryRuns []string
	// Validate calls validating admission with the final object. An action that changes something
	// must call it before.
	Validate func(ctx context.Context, obj runtime.Object) error
	// Change updates an object on behalf of the server. Each attempt calls f with a copy of the
	// current object. f may change anything, because neither validation nor admission runs. Change
	// returns the new resourceVersion of the object.
	Change func(ctx context.Context, what ServerChange, f func(obj api.Object) error) (version string, err error)
	// Delete deletes the object at the path like a DELETE request, but without admission, which has
	// already seen the action.
	Delete func(ctx context.Context, opts *metav1.DeleteOptions) error
}

// ServerChange identifies an object that ActionCall.Change updates, such as the pod of a binding, in the namespace of
// the request. It also contains the preconditions of the update.
type ServerChange struct {
	// Resource of the object. The namespace is that of the request.
	Resource schema.GroupVersionResource
	Name     string
	DryRun   bool
	// Manager, if set, is the field manager of the update.
	Manager string
	// UID and ResourceVersion, unless empty, are preconditions.
	UID             types.UID
	ResourceVersion string
}
