package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/ptr"

	"hyperkube/components/apiserver/rest"
)

// claimStatusAuthorization checks the permissions for changes of the status of ResourceClaims.
// Changes of the allocation and the reservations need the permission for resourceclaims/binding.
// Changes of the device status need the permission for resourceclaims/driver with the name of the
// driver, on the client's own node (associated-node:VERB) or on any node (arbitrary-node:VERB).
//
// https://kep.k8s.io/4817
type claimStatusAuthorization struct {
	*admission.Handler
	authorizer authorizer.Authorizer
	namespaces namespaces
}

// newClaimStatusAuthorization creates the plugin claimStatusAuthorization.
func newClaimStatusAuthorization(cfg *Config) *claimStatusAuthorization {
	return &claimStatusAuthorization{admission.NewHandler(admission.Update), cfg.Authorizer, newNamespaces(cfg)}
}

// Validate rejects an update of a claim's status if the user lacks one of the permissions that the changed fields
// need, or if it newly grants admin access in a namespace that does not allow that. It reports all these errors
// together.
func (c *claimStatusAuthorization) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	claim, ok := a.GetObject().(*resourcev1.ResourceClaim)
	if !ok || a.GetSubresource() != "status" {
		return nil
	}
	old, ok := a.GetOldObject().(*resourcev1.ResourceClaim)
	if !ok {
		return nil
	}
	is, was := &claim.Status, &old.Status
	binds := !equality.Semantic.DeepEqual(is.Allocation, was.Allocation) || !equality.Semantic.DeepEqual(is.ReservedFor, was.ReservedFor)
	var drivers []string
	if is.Allocation != nil { // an unallocated claim has no devices
		drivers = changedDrivers(is.Devices, was.Devices)
	}
	errs := c.checkAdminAccess(ctx, a.GetNamespace(), is.Allocation, was.Allocation)
	if !binds && len(drivers) == 0 && len(errs) == 0 {
		return nil
	}
	info, ok := apirequest.RequestInfoFrom(ctx)
	if !ok {
		return apierrors.NewInternalError(errors.New("cannot build authorizer attributes: no RequestInfo found in the context"))
	}
	verb := info.Verb
	request := &authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: verb, Namespace: info.Namespace, APIGroup: info.APIGroup, APIVersion: info.APIVersion,
		Resource: info.Resource, Subresource: info.Subresource, Name: info.Name, ResourceRequest: true, Path: info.Path,
	}
	if binds {
		if err := rest.Allowed(ctx, c.authorizer, claimAttributes{request, verb, resourcev1.SubresourceBinding, "", ""}); err != nil {
			errs = append(errs, field.Forbidden(field.NewPath("status", "allocation"),
				fmt.Sprintf(`changing status.allocation or status.reservedFor requires resource="resourceclaims/binding", verb="%s" permission: %s`, verb, err)))
		}
	}
	verbs := []string{resourcev1.VerbPrefixArbitraryNode + verb}
	if node := allocatedNode(is.Allocation); node != "" && isOnNode(request.GetUser(), node) {
		verbs = []string{resourcev1.VerbPrefixAssociatedNode + verb, verbs[0]}
	}
	for _, driver := range drivers {
		if err := c.authorizeDriver(ctx, request, verbs, driver); err != nil {
			errs = append(errs, field.Forbidden(field.NewPath("status", "devices"),
				fmt.Sprintf(`changing status.devices requires resource="resourceclaims/driver", verb="%s" permission: %s`, verbs, err)))
		}
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(a.GetKind().GroupKind(), claim.Name, errs)
	}
	return nil
}

// checkAdminAccess returns an error if the new allocation (is) grants admin access to devices in a namespace without
// the label that allows it. It returns nil if the old allocation (was) already granted admin access. Both may be nil.
func (c *claimStatusAuthorization) checkAdminAccess(ctx context.Context, namespace string, is, was *resourcev1.AllocationResult) field.ErrorList {
	granted := func(a *resourcev1.AllocationResult) int {
		if a == nil {
			return -1
		}
		return slices.IndexFunc(a.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool { return ptr.Deref(r.AdminAccess, false) })
	}
	i := granted(is)
	if i < 0 || granted(was) >= 0 {
		return nil
	}
	if err := adminNamespace(ctx, c.namespaces, namespace, field.NewPath("status", "allocation", "devices", "results").Index(i).Child("adminAccess")); err != nil {
		return field.ErrorList{err}
	}
	return nil
}

// authorizeDriver returns nil if the user of request is authorized for one of the verbs on the driver. If for none of
// them, it returns the error for the first verb.
func (c *claimStatusAuthorization) authorizeDriver(ctx context.Context, request authorizer.Attributes, verbs []string, driver string) error {
	var first error
	for _, verb := range verbs {
		err := rest.Allowed(ctx, c.authorizer, claimAttributes{request, verb, resourcev1.SubresourceDriver, request.GetNamespace(), driver})
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// claimAttributes are the attributes of a request with another verb, subresource, namespace and name. They describe an
// additional permission that the user of the request needs.
type claimAttributes struct {
	authorizer.Attributes

	verb, subresource, namespace, name string
}

func (a claimAttributes) GetVerb() string        { return a.verb }
func (a claimAttributes) GetSubresource() string { return a.subresource }
func (a claimAttributes) GetNamespace() string   { return a.namespace }
func (a claimAttributes) GetName() string        { return a.name }

// changedDrivers returns the names of the DRA drivers with a device whose status was added, removed or changed
// between the old status (was) and the new one (is), sorted and without duplicates.
func changedDrivers(is, was []resourcev1.AllocatedDeviceStatus) []string {
	type key struct{ driver, pool, device, share string }
	of := func(d *resourcev1.AllocatedDeviceStatus) key {
		k := key{driver: d.Driver, pool: d.Pool, device: d.Device}
		if d.ShareID != nil {
			k.share = *d.ShareID
		}
		return k
	}
	before, drivers := map[key]*resourcev1.AllocatedDeviceStatus{}, map[string]bool{}
	for i := range was {
		before[of(&was[i])] = &was[i]
	}
	for i := range is {
		k := of(&is[i])
		if d := before[k]; d == nil || !equality.Semantic.DeepEqual(*d, is[i]) {
			drivers[k.driver] = true
		}
		delete(before, k)
	}
	for k := range before {
		drivers[k.driver] = true
	}
	return slices.Sorted(maps.Keys(drivers))
}

// allocatedNode returns the name of the node if the node selector of the allocation is exactly metadata.name in
// [NAME], which restricts it to one node. Otherwise, and for nil, it returns "".
func allocatedNode(a *resourcev1.AllocationResult) string {
	if a == nil || a.NodeSelector == nil || len(a.NodeSelector.NodeSelectorTerms) != 1 {
		return ""
	}
	term := &a.NodeSelector.NodeSelectorTerms[0]
	if len(term.MatchExpressions) != 0 || len(term.MatchFields) != 1 {
		return ""
	}
	f := &term.MatchFields[0]
	if f.Key != "metadata.name" || f.Operator != corev1.NodeSelectorOpIn || len(f.Values) != 1 {
		return ""
	}
	return f.Values[0]
}

// isOnNode reports whether u is a service account whose token was issued for a pod on the node.
func isOnNode(u user.Info, node string) bool {
	if _, _, err := serviceaccount.SplitUsername(u.GetName()); err != nil {
		return false
	}
	names := u.GetExtra()[serviceaccount.NodeNameKey]
	return len(names) == 1 && names[0] == node
}
