package integration

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"

	"hyperkube/components/apiserver"
	"hyperkube/internal/api"
	"hyperkube/internal/testing/testwait"
)

// TestCustomReplaced checks that clients that read and write while the definition changes see no
// errors.
func TestCustomReplaced(t *testing.T) {
	c := newCustom(t)
	c.define(foos, "Established=True")
	all := c.Resource(fooV1).Namespace("default")
	if _, err := all.Create(c.ctx, foo(t, "a", "spec: {}"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	var wg sync.WaitGroup
	var served atomic.Int64
	for i, request := range []func(n int) error{
		func(int) error { _, err := all.List(c.ctx, metav1.ListOptions{}); return err },
		func(int) error { _, err := all.Get(c.ctx, "a", metav1.GetOptions{}); return err },
		func(n int) error {
			_, err := all.Patch(c.ctx, "a", types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n%9), metav1.PatchOptions{})
			return err
		},
		func(n int) error {
			name := fmt.Sprint("b", n)
			if _, err := all.Create(c.ctx, foo(t, name, "spec: {}"), metav1.CreateOptions{}); err != nil {
				return err
			}
			return all.Delete(c.ctx, name, metav1.DeleteOptions{})
		},
		func(n int) error {
			_, err := all.Create(c.ctx, foo(t, fmt.Sprint("c", n), "spec: {}"), metav1.CreateOptions{DryRun: []string{"All"}})
			return err
		},
	} {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-ended:
					return
				default:
				}
				if err := request(n); err != nil {
					t.Errorf("request %d, the %d. time: %v", i, n, err)
					return
				}
				served.Add(1)
			}
		})
	}
	for n := range 60 {
		patch := fmt.Appendf(nil, `[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/description","value":"%d"},
			{"op":"add","path":"/spec/versions/1/schema/openAPIV3Schema/description","value":"%[1]d"}]`, n)
		if _, err := c.Resource(definitions).Patch(c.ctx, "foos.example.com", types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
		before := served.Load()
		testwait.Until(t, "requests after the change", func() bool { return served.Load() > before || t.Failed() })
	}
	close(ended)
	wg.Wait()
}

// replacing is an admission plugin that admits everything. The next left times, it first replaces
// the custom resource definition, by a cluster-scoped one if unbounded is set.
type replacing struct {
	server    *apiserver.Server
	left      int
	unbounded bool
}

func (r *replacing) Handles(admission.Operation) bool { return true }

func (r *replacing) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource() != fooV1 || r.left == 0 {
		return nil
	}
	r.left--
	reg := r.server.Registry()
	one, two := *reg.Lookup(fooV1).Resource, *reg.Lookup(fooV2).Resource
	if r.unbounded {
		one.Scope, two.Scope = api.Cluster, api.Cluster
	}
	reg.Replace(fooV1.GroupResource(), false, &one, &two)
	return nil
}

// TestCustomReplacedOften checks that a slow request succeeds even if the definition changes many
// times in the meantime.
func TestCustomReplacedOften(t *testing.T) {
	r := &replacing{left: 40}
	r.server = startServer(t, apiserver.Config{Admission: r})
	c := customOf(t, r.server)
	c.define(foos, "Established=True")
	if _, err := c.Resource(fooV1).Namespace("default").Create(c.ctx, foo(t, "a", "spec: {}"), metav1.CreateOptions{DryRun: []string{"All"}}); err != nil {
		t.Error(err)
	}
	if r.left > 0 {
		t.Errorf("it was not replaced %d times", r.left)
	}
}

// TestCustomReplacedWhileWriting checks that objects made with a previous definition are not
// stored.
func TestCustomReplacedWhileWriting(t *testing.T) {
	r := &replacing{}
	r.server = startServer(t, apiserver.Config{Admission: r})
	c := customOf(t, r.server)
	c.define(foos, "Established=True")
	all := c.Resource(fooV1).Namespace("default")
	for name, request := range map[string]func() error{
		"create": func() error {
			_, err := all.Create(c.ctx, foo(t, "a", "spec: {}"), metav1.CreateOptions{})
			return err
		},
		"apply": func() error {
			_, err := all.Apply(c.ctx, "b", foo(t, "b", "spec: {}"), metav1.ApplyOptions{FieldManager: "m"})
			return err
		},
		"patch": func() error {
			if _, err := all.Create(c.ctx, foo(t, "c", "spec: {}"), metav1.CreateOptions{}); err != nil {
				return err
			}
			r.left = 5
			_, err := all.Patch(c.ctx, "c", types.MergePatchType, []byte(`{"spec":{"replicas":7}}`), metav1.PatchOptions{})
			return err
		},
	} {
		r.left = 5
		if err := request(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if r.left > 0 {
			t.Errorf("%s: an object of a replaced definition was stored, and %d more replacements would not have been detected", name, r.left)
		}
	}
}

// TestCustomReplacedElsewhere checks that a request for a namespace cannot access cluster-scoped
// objects.
func TestCustomReplacedElsewhere(t *testing.T) {
	r := &replacing{left: 1, unbounded: true}
	r.server = startServer(t, apiserver.Config{Admission: r})
	c := customOf(t, r.server)
	c.define(foos, "Established=True")
	reg := r.server.Registry()
	// The controller of definitions may process an earlier change and restore the definition during the request. The
	// request then succeeds, and is repeated.
	testwait.Until(t, "a request during the replacement", func() bool {
		got, err := c.Resource(fooV1).Namespace("default").Create(c.ctx, foo(t, "a", "spec: {}"), metav1.CreateOptions{DryRun: []string{"All"}})
		if err == nil && reg.Lookup(fooV1).Resource.Scope == api.Namespaced {
			r.left = 1
			return false
		}
		if !apierrors.IsNotFound(err) {
			t.Errorf("made %v, %v", got, err)
		}
		return true
	})
	if r.left > 0 {
		t.Error("the definition was not replaced")
	}
}
