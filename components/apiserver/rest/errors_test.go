package rest

import (
	"fmt"
	"net/http"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// TestUnavailable checks that a read that etcd did not answer can be retried, which clients do
// automatically if the error contains a delay. A write may have succeeded, so its error contains
// etcd's message instead.
func TestUnavailable(t *testing.T) {
	res := &registry.Resource{Resource: &api.Resource{Names: api.Names{Plural: "configmaps"}}}
	for _, test := range []struct {
		err        error
		retryAfter int32
		message    string
	}{
		{fmt.Errorf("reading: %w", store.ErrUnavailable), 1, "The  operation against configmaps could not be completed at this time, please try again."},
		{fmt.Errorf("writing: %w", &store.UnsettledError{Err: rpctypes.ErrLeaderChanged}), 0, "etcdserver: leader changed"},
	} {
		status := statusOf(StoreError(res, "a", test.err))
		after := int32(0)
		if status.Details != nil {
			after = status.Details.RetryAfterSeconds
		}
		if status.Code != http.StatusInternalServerError || after != test.retryAfter || status.Message != test.message {
			t.Errorf("%v: %+v", test.err, status)
		}
	}
}
