package audit

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/audit"
)

// requestRecordKey is the key of the context value with the request's *requestRecord.
type requestRecordKey struct{}

// Requested adds the decoded and defaulted object of a request, which is of version gv, to the audit event of the
// request in ctx. Handlers call it because the raw body may lack defaults. It does nothing for requests that are not
// audited.
func Requested(ctx context.Context, obj runtime.Object, gv schema.GroupVersion) {
	t, ok := ctx.Value(requestRecordKey{}).(*requestRecord)
	if !ok || t.ac != audit.AuditContextFrom(ctx) {
		return // the record may belong to the request that caused this internal request
	}
	t.objectRecorded = true
	audit.LogRequestObject(ctx, obj, gv, t.gvr(), t.info.Subresource, jsonSerializer{})
}
