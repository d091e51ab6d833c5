package addons

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestApplierRetries rejects applied objects, as a webhook does whose pods do not run yet. Objects
// that exist from an earlier start do not delay readiness. Others delay it, and all are applied
// when the policy admits them.
func TestApplierRetries(t *testing.T) {
	object := func(kind, version, name string) *unstructured.Unstructured {
		obj := &unstructured.Unstructured{}
		obj.SetGroupVersionKind(schema.FromAPIVersionAndKind(version, kind))
		obj.SetNamespace("kube-system")
		obj.SetName(name)
		return obj
	}
	account, workload := object("ServiceAccount", "v1", "dns"), object("Deployment", "apps/v1", "dns")
	run := func(t *testing.T, existing ...runtime.Object) (k *Applier, allow func(), refused, applied chan string) {
		client := fake.NewSimpleDynamicClient(runtime.NewScheme(), existing...)
		var allowed atomic.Bool
		refused, applied = make(chan string, 1), make(chan string, 8)
		client.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if !allowed.Load() {
				select {
				case refused <- action.GetResource().Resource:
				default:
				}
				return true, nil, errors.New("failed calling webhook")
			}
			applied <- action.GetResource().Resource
			return true, account, nil
		})
		k = NewApplier(client, [][]*unstructured.Unstructured{{account}, {workload}}, slog.New(slog.DiscardHandler))
		k.retryInterval, k.maxRetryInterval = time.Millisecond, time.Millisecond
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- k.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		return k, func() { allowed.Store(true) }, refused, applied
	}
	t.Run("existing objects", func(t *testing.T) {
		k, allow, _, applied := run(t, account, workload)
		<-k.Ready()
		if got := k.Describe(t.Context()); !strings.Contains(got, "failed calling webhook") {
			t.Errorf("described as %q", got)
		}
		allow()
		if a, b := <-applied, <-applied; a == b {
			t.Errorf("applied twice: %s", a)
		}
	})
	t.Run("new", func(t *testing.T) {
		k, allow, refused, applied := run(t)
		for range 3 {
			if got := <-refused; got != "serviceaccounts" {
				t.Errorf("%s was applied before the batch that it depends on", got)
			}
		}
		select {
		case <-k.Ready():
			t.Error("ready before the objects exist")
		default:
		}
		allow()
		<-k.Ready()
		if a, b := <-applied, <-applied; a != "serviceaccounts" || b != "deployments" {
			t.Errorf("applied %s, then %s", a, b)
		}
	})
}
