package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"hyperkube/components/apiserver"
	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// reviewer is an admission plugin that admits everything and records the requests.
type reviewer struct {
	mu  sync.Mutex
	saw []string
}

func (r *reviewer) Handles(admission.Operation) bool { return true }

func (r *reviewer) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return r.note("mutating", a)
}

func (r *reviewer) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return r.note("validating", a)
}

func (r *reviewer) note(when string, a admission.Attributes) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := fmt.Sprintf("%s %s %s/%s %q", when, a.GetOperation(), a.GetResource().Resource, a.GetSubresource(), a.GetName())
	switch obj := a.GetObject().(type) {
	case *corev1.ConfigMap:
		text += fmt.Sprintf(" allocated=%s versioned=%v", obj.Labels["allocated"], obj.ResourceVersion != "")
	case *autoscalingv1.Scale:
		text += fmt.Sprintf(" uid=%v managed=%v selector=%s", obj.UID != "", obj.ManagedFields != nil, obj.Status.Selector)
	case *corev1.PodProxyOptions:
		text += " path=" + obj.Path
	}
	if opts, ok := a.GetOperationOptions().(*metav1.DeleteOptions); ok && opts.GracePeriodSeconds != nil {
		text += fmt.Sprintf(" grace=%d", *opts.GracePeriodSeconds)
	}
	r.saw = append(r.saw, text)
	return nil
}

// TestAdmissionAttributes checks the attributes that admission, and therefore webhooks, get for
// each request. They must be the same as in upstream.
func TestAdmissionAttributes(t *testing.T) {
	r := &reviewer{}
	allocate := func(_ context.Context, obj, _ api.Object) ([]store.Op, error) {
		if obj != nil {
			labels := obj.GetLabels()
			if labels == nil {
				labels = map[string]string{}
			}
			labels["allocated"] = "yes"
			obj.SetLabels(labels)
		}
		return nil, nil
	}
	a := newAPI(t, startServer(t, apiserver.Config{Admission: r, Extend: func(reg *registry.Registry) error {
		return reg.AddHook(schema.GroupResource{Resource: "configmaps"}, allocate)
	}}))
	const (
		pods        = "/api/v1/namespaces/default/pods"
		deployments = "/apis/apps/v1/namespaces/default/deployments"
		pod         = `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`
	)
	for _, tc := range []struct {
		method, path, body, header string
		want                       []string
	}{
		{"POST", cms, `{"metadata":{"name":"a"}}`, jsn, []string{`mutating CREATE configmaps/ "a" allocated= versioned=false`, `validating CREATE configmaps/ "a" allocated=yes versioned=false`}},
		{"PUT", cms + "/a", `{"metadata":{"name":"a"},"data":{"a":"b"}}`, jsn, []string{`mutating UPDATE configmaps/ "a" allocated= versioned=false`, `validating UPDATE configmaps/ "a" allocated=yes versioned=true`}},
		{"DELETE", cms, ``, jsn, []string{`mutating DELETE configmaps/ ""`, `validating DELETE configmaps/ ""`}},
		{"POST", deployments, `{"metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`, jsn, nil},
		{"PUT", deployments + "/d/scale", `{"metadata":{"name":"d"},"spec":{"replicas":2}}`, jsn, []string{
			`mutating UPDATE deployments/scale "d" uid=false managed=true selector=`, `validating UPDATE deployments/scale "d" uid=true managed=false selector=a=b`}},
		{"POST", pods, pod, jsn, nil},
		{"GET", pods + "/p/proxy/x/", "", jsn, []string{`mutating CONNECT pods/proxy "p" path=/x/`, `validating CONNECT pods/proxy "p" path=/x/`}},
		{"POST", pods + "/p/eviction", `{"metadata":{"name":"p"}}`, jsn, []string{`mutating CREATE pods/eviction "p"`, `validating CREATE pods/eviction "p"`}},
		{"POST", pods, pod, jsn, nil},
		{"DELETE", pods + "/p", "", jsn, []string{`mutating DELETE pods/ "p" grace=0`, `validating DELETE pods/ "p" grace=0`}},
	} {
		// A request that is based on an outdated cache calls admission again after the conflict. A
		// list waits until the cache is up to date.
		for _, path := range []string{cms, deployments, pods} {
			if all := a.do("GET", path, "", ""); all.code != 200 {
				t.Fatalf("GET %s: %+v", path, all)
			}
		}
		r.saw = nil
		answer := a.do(tc.method, tc.path, tc.body, tc.header)
		if tc.want == nil && answer.code != 201 {
			t.Fatalf("%s %s: %+v", tc.method, tc.path, answer)
		}
		r.mu.Lock()
		if tc.want != nil && !slices.Equal(r.saw, tc.want) {
			t.Errorf("%s %s (%d): admission saw\n%s\nand not\n%s", tc.method, tc.path, answer.code, strings.Join(r.saw, "\n"), strings.Join(tc.want, "\n"))
		}
		r.mu.Unlock()
	}
}
