package registry

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/internal/api"
)

// Action answers the create of something that is not stored itself: a review
// (Subresource empty), or a subresource such as serviceaccounts/token. The API
// server decodes the body, defaults it (a review by Resource.Default, and
// validates that by Resource.Validate) and asks mutating admission before Run.
// What the user may do has been decided by authorization. User and request
// information are in the context, see k8s.io/apiserver/pkg/endpoints/request.
type Action struct {
	// Resource and Subresource that this is, e.g. "serviceaccounts" and
	// "token". Subresource is empty for reviews.
	Resource    schema.GroupVersionResource
	Subresource string
	// Kind of the body and the answer, e.g. authentication.k8s.io/v1
	// TokenRequest.
	Kind schema.GroupVersionKind
	// Former is an older version whose bodies read the same; empty: there is
	// none.
	Former string
	// New makes an empty body.
	New func() runtime.Object
	// Default fills what the body leaves unset; may be nil.
	Default func(obj runtime.Object)
	// Run answers. The answer is sent with status 201; a *metav1.Status is
	// sent with its own code. Errors should be Status errors.
	Run func(ctx context.Context, call ActionCall) (runtime.Object, error)
}

// ActionCall is one request for an Action.
type ActionCall struct {
	// Namespace and Name from the path; where the path has no name it is
	// that of the body.
	Namespace, Name string
	// Object is the decoded body; it is the action's own.
	Object runtime.Object
	// Resource is the resource whose subresource was asked for.
	Resource *Resource
	DryRun   bool
	// DryRuns is how the query asks for that.
	DryRuns []string
	// Validate asks validating admission about the final object; an action
	// that changes something calls it before it does.
	Validate func(ctx context.Context, obj runtime.Object) error
	// Change changes an object by the server itself: f is given a copy, again
	// in each attempt, and may change anything, for nothing is validated or
	// admitted. It returns the resourceVersion that the object then has.
	Change func(ctx context.Context, what OwnChange, f func(obj api.Object) error) (version string, err error)
	// Delete deletes the object at the path as a client's DELETE would, but for
	// admission, which has seen what the action is.
	Delete func(ctx context.Context, opts *metav1.DeleteOptions) error
}

// OwnChange says which object the server itself changes.
type OwnChange struct {
	// Resource of the object, in the request's namespace.
	Resource schema.GroupVersionResource
	Name     string
	DryRun   bool
	// Manager, when set, is recorded in the managed fields.
	Manager string
	// UID and ResourceVersion, unless empty, are those that the object must have.
	UID             types.UID
	ResourceVersion string
}
