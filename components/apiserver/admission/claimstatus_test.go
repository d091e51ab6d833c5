package admission

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func TestClaimWriters(t *testing.T) {
	allocated := resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n1"}}},
	}}}}}
	withDevices := *allocated.DeepCopy()
	withDevices.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: "d", Pool: "p", Device: "0"}}
	reserved := *allocated.DeepCopy()
	reserved.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Name: "p"}}
	admin := *allocated.DeepCopy()
	yes := true
	admin.Allocation.Devices.Results = []resourcev1.DeviceRequestAllocationResult{{Request: "a"}, {Request: "b", AdminAccess: &yes}}
	adminWithDevices := *admin.DeepCopy()
	adminWithDevices.Devices = withDevices.Devices
	on := func(node string) user.Info {
		return &user.DefaultInfo{Name: "system:serviceaccount:ns:driver", Extra: map[string][]string{"authentication.kubernetes.io/node-name": {node}}}
	}
	for _, tc := range []struct {
		name    string
		was, is resourcev1.ResourceClaimStatus
		user    user.Info
		may     string // verb, resource, name
		err     string
	}{
		{"nothing", allocated, allocated, on("n1"), "", ""},
		{"binding", resourcev1.ResourceClaimStatus{}, allocated, on("n1"), "update binding  ", ""},
		{"no binding", allocated, reserved, on("n1"), "", `status.allocation: Forbidden: changing status.allocation or status.reservedFor requires resource="resourceclaims/binding", verb="update" permission: `},
		{"own node", allocated, withDevices, on("n1"), "associated-node:update driver d ns", ""},
		{"other node", allocated, withDevices, on("n2"), "associated-node:update driver d ns", `status.devices: Forbidden: changing status.devices requires resource="resourceclaims/driver", verb="[arbitrary-node:update]" permission: `},
		{"any node", withDevices, allocated, on("n2"), "arbitrary-node:update driver d ns", ""},
		{"other driver", allocated, withDevices, on("n1"), "associated-node:update driver e ns", `verb="[associated-node:update arbitrary-node:update]" permission: `},
		{"an administrator's device", resourcev1.ResourceClaimStatus{}, admin, on("n1"), "update binding  ", "status.allocation.devices.results[1].adminAccess: Forbidden: admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace"},
		{"an administrator's device as before", admin, adminWithDevices, on("n1"), "associated-node:update driver d ns", ""},
		{"given up", withDevices, resourcev1.ResourceClaimStatus{}, on("n1"), "update binding  ", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			kube := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}})
			c := newClaimStatusAuthorization(&Config{Kube: kube, Informers: informers.NewSharedInformerFactory(kube, 0), Authorizer: authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
				if slices.Equal([]string{a.GetVerb(), a.GetSubresource(), a.GetName(), a.GetNamespace()}, strings.Split(tc.may, " ")) {
					return authorizer.DecisionAllow, "", nil
				}
				return authorizer.DecisionNoOpinion, "", nil
			})})
			object := func(s resourcev1.ResourceClaimStatus) *resourcev1.ResourceClaim {
				return &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}, Status: s}
			}
			ctx := apirequest.WithUser(t.Context(), tc.user)
			ctx = apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{
				IsResourceRequest: true, Verb: "update", APIGroup: "resource.k8s.io", APIVersion: "v1", Namespace: "ns", Resource: "resourceclaims", Subresource: "status", Name: "c",
			})
			err := c.Validate(ctx, admission.NewAttributesRecord(object(tc.is), object(tc.was), resourcev1.SchemeGroupVersion.WithKind("ResourceClaim"), "ns", "c",
				resourcev1.SchemeGroupVersion.WithResource("resourceclaims"), "status", admission.Update, nil, false, tc.user), nil)
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("got %v, want %q", err, tc.err)
			}
		})
	}
}
