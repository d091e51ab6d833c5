package audit

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/audit"
)

type requestRecordKey struct{}

// Requested records the decoded and defaulted request object, which is of version gv. It does
// nothing for requests that are not audited.
func Requested(ctx context.Context, obj runtime.Object, gv schema.GroupVersion) {
	t, ok := ctx.Value(requestRecordKey{}).(*requestRecord)
	if !ok || t.ac != audit.AuditContextFrom(ctx) {
		return // the trail may belong to the request that caused this internal request
	}
	t.objectRecorded = true
	audit.LogRequestObject(ctx, obj, gv, t.gvr(), t.info.Subresource, jsonSerializer{})
}
