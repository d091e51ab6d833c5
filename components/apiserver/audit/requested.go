package audit

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/audit"
)

type trailKey struct{}

// Requested records the object that a request of a context brought, as it was
// understood: of the version gv, and defaulted. It does nothing for requests that
// are not on record.
func Requested(ctx context.Context, obj runtime.Object, gv schema.GroupVersion) {
	t, ok := ctx.Value(trailKey{}).(*trail)
	if !ok || t.ac != audit.AuditContextFrom(ctx) {
		return // of the request that has made this one, perhaps
	}
	t.requested = true
	audit.LogRequestObject(ctx, obj, gv, t.gvr(), t.info.Subresource, plain{})
}
