package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestAdminAccess(t *testing.T) {
	yes, no := true, false
	spec := func(admin *bool) resourcev1.ResourceClaimSpec {
		return resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
			{Name: "first", FirstAvailable: []resourcev1.DeviceSubRequest{{Name: "x"}}}, {Name: "second", Exactly: &resourcev1.ExactDeviceRequest{AdminAccess: admin}}}}}
	}
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "c"}
	for _, labels := range []map[string]string{nil, {resourcev1.DRAAdminNamespaceLabelKey: "True"}, {resourcev1.DRAAdminNamespaceLabelKey: "true"}} {
		c, _ := chain(t, Config{}, []string{"ResourceQuota"}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: labels}})
		refused := "spec.devices.requests[1].adminAccess: Forbidden: admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace"
		if labels[resourcev1.DRAAdminNamespaceLabelKey] == "true" {
			refused = ""
		}
		for admin, want := range map[*bool]string{nil: "", &no: "", &yes: refused} {
			for resource, obj := range map[string]runtime.Object{
				"resource.k8s.io/resourceclaims":         &resourcev1.ResourceClaim{ObjectMeta: meta, Spec: spec(admin)},
				"resource.k8s.io/resourceclaimtemplates": &resourcev1.ResourceClaimTemplate{ObjectMeta: meta, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: spec(admin)}},
			} {
				wantErr(t, ask(t, c, write{ns: "ns", resource: resource, obj: obj}), want)
			}
		}
	}
}
