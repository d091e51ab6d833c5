package rest

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

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

func TestNewInvalid(t *testing.T) {
	errs := make(field.ErrorList, 100_000)
	for i := range errs {
		errs[i] = field.Invalid(field.NewPath("data").Key(strconv.Itoa(i)), "v", "must be valid")
	}
	kind := schema.GroupKind{Kind: "ConfigMap"}
	for n, want := range map[int]int{1: 1, maxInvalid: maxInvalid, maxInvalid + 1: maxInvalid + 1, len(errs): maxInvalid + 1} {
		status := newInvalid(kind, "c", errs[:n]).Status()
		causes := status.Details.Causes
		if status.Code != http.StatusUnprocessableEntity || len(causes) != want {
			t.Errorf("%d errors: code %d with %d causes, want %d", n, status.Code, len(causes), want)
		}
		if truncated := causes[len(causes)-1].Type == metav1.CauseTypeTooMany; truncated != (n > maxInvalid) {
			t.Errorf("%d errors: the last cause is %+v", n, causes[len(causes)-1])
		}
	}
}
