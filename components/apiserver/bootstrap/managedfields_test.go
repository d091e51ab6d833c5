package bootstrap

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/components/apiserver/fieldmanager"
	"hyperkube/internal/api"
	"hyperkube/internal/api/core"
	"hyperkube/internal/api/discovery"
	"hyperkube/internal/api/flowcontrol"
	"hyperkube/internal/api/networking"
	"hyperkube/internal/api/rbac"
	"hyperkube/internal/api/scheduling"
)

// TestManagedFields compares the managed fields of the initial objects with those that a create
// request through the API computes.
func TestManagedFields(t *testing.T) {
	known := map[schema.GroupVersionResource]*api.Resource{}
	for _, res := range slices.Concat(core.Resources(), rbac.Resources(), scheduling.Resources(), networking.Resources(), discovery.Resources(), flowcontrol.Resources()) {
		known[res.GVR()] = res
	}
	fields := fieldmanager.New(nil)
	compare := func(gvr schema.GroupVersionResource, obj api.Object) {
		t.Helper()
		res := known[gvr]
		if res == nil {
			t.Fatalf("no %s", gvr)
		}
		want := obj.DeepCopyObject().(api.Object)
		res.Default(want)
		want.GetObjectKind().SetGroupVersionKind(res.GVK())
		want, err := fields.Created(res, want, "x")
		if err != nil {
			t.Fatal(err)
		}
		got := prepare(context.Background(), res, obj)
		var update []metav1.ManagedFieldsEntry
		for _, e := range got.GetManagedFields() {
			if e.Operation == metav1.ManagedFieldsOperationUpdate {
				update = append(update, e)
			}
		}
		if len(update) != 1 || update[0].APIVersion != gvr.GroupVersion().String() || update[0].Time == nil {
			t.Fatalf("%s %s: %+v", gvr.Resource, obj.GetName(), got.GetManagedFields())
		}
		if is, should := update[0].FieldsV1.GetRawString(), want.GetManagedFields()[0].FieldsV1.GetRawString(); is != should {
			t.Errorf("%s %s: %s owns\n%s, and not\n%s", gvr.Resource, obj.GetName(), update[0].Manager, is, should)
		}
	}
	for _, w := range desiredResources(Config{ServiceCIDRs: []string{"10.96.0.0/16"}}) {
		for _, obj := range w.objects {
			compare(w.gvr, obj)
		}
	}
	k := &ServiceReconciler{cfg: ServiceReconcilerConfig{ServiceIP: netip.MustParseAddr("10.96.0.1"), Advertise: netip.MustParseAddrPort("192.0.2.1:6443"), NodePort: 30000},
		servers: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	for _, one := range []struct {
		gvr  schema.GroupVersionResource
		obj  api.Object
		make func(api.Object)
	}{
		{corev1.SchemeGroupVersion.WithResource("services"), &corev1.Service{}, k.service},
		{corev1.SchemeGroupVersion.WithResource("endpoints"), &corev1.Endpoints{}, k.endpointsObject},
		{discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), &discoveryv1.EndpointSlice{}, k.slice},
	} {
		one.obj.SetName(kubernetes)
		one.obj.SetNamespace(metav1.NamespaceDefault)
		one.make(one.obj)
		compare(one.gvr, one.obj)
	}
}
