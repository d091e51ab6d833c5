package serviceip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"hyperkube/internal/store"
)

// managedBy is the value of the label managed-by of IPAddress objects that this package creates. It
// does not delete or restore IPAddress objects without it.
const managedBy = "ipallocator.k8s.io"

// Errors for addresses that cannot be allocated to a Service, with upstream's texts.
var (
	errTaken         = errors.New("provided IP is already allocated")
	errFull          = errors.New("range is full")
	errOutsideRanges = errors.New("the provided network does not match the current range")
)

// addresses adds operations to the transaction of the write: they allocate the missing cluster IPs of w.obj, the new
// version of the Service (nil if it is deleted), and release those that only w.old, the old version, uses. It sets
// the chosen addresses in w.obj. It returns an error for the client if an address is not available.
func (w *write) addresses(ctx context.Context) error {
	is, was := w.obj, w.old
	switch {
	case is == nil:
		return w.free(ctx, addressesOf(was))
	case was == nil || was.Spec.Type == corev1.ServiceTypeExternalName && is.Spec.Type != corev1.ServiceTypeExternalName:
		return w.allocateAll(ctx)
	case unchangedPreference(is, was) || len(was.Spec.ClusterIPs) > 0 && was.Spec.ClusterIPs[0] == corev1.ClusterIPNone:
		return nil
	case was.Spec.Type != corev1.ServiceTypeExternalName && is.Spec.Type == corev1.ServiceTypeExternalName:
		return w.free(ctx, addressesOf(was))
	case len(was.Spec.IPFamilies) == 1 && len(is.Spec.IPFamilies) == 2:
		// Normally the Service has its first address, unless etcd was modified directly.
		for i := len(addressesOf(was)); i < 2; i++ {
			if len(is.Spec.ClusterIPs) <= i {
				is.Spec.ClusterIPs = append(is.Spec.ClusterIPs, "")
			}
			if err := w.allocate(ctx, i); err != nil {
				return err
			}
		}
		return nil
	case len(was.Spec.IPFamilies) == 2 && len(is.Spec.IPFamilies) == 1 && len(was.Spec.ClusterIPs) > 1:
		return w.free(ctx, was.Spec.ClusterIPs[1:])
	}
	return nil
}

// addressesOf returns the cluster IPs that are allocated to a Service. It returns nil for headless
// Services and those of type ExternalName.
func addressesOf(svc *corev1.Service) []string {
	if svc.Spec.Type == corev1.ServiceTypeExternalName || headless(svc) {
		return nil
	}
	if len(svc.Spec.ClusterIPs) == 0 && svc.Spec.ClusterIP != "" {
		return []string{svc.Spec.ClusterIP}
	}
	return svc.Spec.ClusterIPs
}

// allocateAll allocates a cluster IP of each family in w.obj's ipFamilies, unless the Service is
// headless or of type ExternalName.
func (w *write) allocateAll(ctx context.Context) error {
	spec := &w.obj.Spec
	if spec.Type == corev1.ServiceTypeExternalName || len(spec.ClusterIPs) > 0 && spec.ClusterIPs[0] == corev1.ClusterIPNone {
		return nil
	}
	for i := range spec.IPFamilies {
		if i >= len(spec.ClusterIPs) {
			spec.ClusterIPs = append(spec.ClusterIPs, "")
		}
		if err := w.allocate(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// allocate allocates the cluster IP that clusterIPs[i] of w.obj, the new version of the Service, requests. If that is
// empty, it chooses an address and sets it in w.obj. A requested address that is not available is an error for the
// client.
func (w *write) allocate(ctx context.Context, i int) error {
	spec := &w.obj.Spec
	began := time.Now()
	if requested := spec.ClusterIPs[i]; requested != "" {
		err := w.allocateIP(ctx, requested)
		w.recordAddress(ctx, static, requested, spec.IPFamilies[i], began, err)
		if err != nil {
			return invalid(w.obj, field.Invalid(field.NewPath("spec", "clusterIPs"), spec.ClusterIPs,
				fmt.Sprintf("failed to allocate IP %v: %v", requested, err)))
		}
		return nil
	}
	addr, err := w.choose(ctx, spec.IPFamilies[i])
	w.recordAddress(ctx, dynamic, addr.String(), spec.IPFamilies[i], began, err)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP: %w", err))
	}
	spec.ClusterIPs[i] = addr.String()
	if i == 0 {
		spec.ClusterIP = addr.String()
	}
	w.ops = append(w.ops, w.createOp(addr, w.obj))
	return nil
}

// allocateIP adds the operation that allocates a specific address. It returns an error for the client if the address
// is invalid, in use, in no Service range, or reserved in its range.
func (w *write) allocateIP(ctx context.Context, requested string) error {
	addr, err := parse(requested)
	if err != nil {
		return err
	}
	ranges, err := w.cidrs(ctx, family(addr))
	if err != nil {
		return err
	}
	var in allocationRange
	for _, r := range ranges {
		if r.prefix.Contains(addr) {
			in = r
			break
		}
	}
	if !in.prefix.IsValid() {
		return errOutsideRanges
	}
	if !in.usable(addr) {
		return fmt.Errorf("the provided IP (%v) is not in the valid range. The range of valid IPs is %s", addr, in.prefix)
	}
	// Wait until the cache includes all writes, because it may not have seen the release of the address yet.
	switch _, err := w.cfg.IPAddresses.Get(ctx, addr.String(), -1); {
	case err == nil:
		return errTaken
	case !errors.Is(err, store.ErrNotFound):
		return err
	}
	w.ops = append(w.ops, w.createOp(addr, w.obj))
	return nil
}

// choose returns a random address of the family f for which the cache has no IPAddress object. If
// another server has allocated it in the meantime, the transaction fails and the write of the
// Service is tried again. It returns errFull if there is none.
func (a *Allocator) choose(ctx context.Context, f corev1.IPFamily) (netip.Addr, error) {
	ranges, err := a.cidrs(ctx, f)
	if err != nil {
		return netip.Addr{}, err
	}
	// Wait until the cache is filled.
	if _, err := a.cfg.IPAddresses.Get(ctx, "0", 0); err != nil && !errors.Is(err, store.ErrNotFound) {
		return netip.Addr{}, err
	}
	free := func(addr netip.Addr) bool { return a.cfg.IPAddresses.Cached(addr.String()) == nil }
	for _, r := range ranges {
		if addr, ok := r.choose(free); ok {
			return addr, nil
		}
	}
	return netip.Addr{}, errFull
}

// cidrs returns the ranges of a family from which addresses may be allocated: the configured one, if any, and then
// those of ready ServiceCIDR objects, without duplicates.
func (a *Allocator) cidrs(ctx context.Context, f corev1.IPFamily) ([]allocationRange, error) {
	var out []allocationRange
	add := func(prefix netip.Prefix) {
		for _, b := range out {
			if b.prefix == prefix {
				return
			}
		}
		if family(prefix.Addr()) == f {
			out = append(out, newAllocationRange(prefix))
		}
	}
	for _, c := range a.cfg.CIDRs {
		add(c)
	}
	if a.cfg.ServiceCIDRs == nil {
		return out, nil
	}
	page, err := a.cfg.ServiceCIDRs.List(ctx, store.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, e := range page.Entries {
		obj, err := e.Object()
		if err != nil {
			return nil, err
		}
		cidr := obj.(*networkingv1.ServiceCIDR)
		if !ready(cidr) {
			continue
		}
		for _, s := range cidr.Spec.CIDRs {
			if prefix, err := netip.ParsePrefix(s); err == nil {
				add(prefix.Masked())
			}
		}
	}
	return out, nil
}

// ready reports whether new addresses may be allocated from the ranges of a ServiceCIDR: it is not
// being deleted, and its condition Ready is not False.
func ready(c *networkingv1.ServiceCIDR) bool {
	if c.DeletionTimestamp != nil {
		return false
	}
	for _, cond := range c.Status.Conditions {
		if cond.Type == networkingv1.ServiceCIDRConditionReady && cond.Status == metav1.ConditionFalse {
			return false
		}
	}
	return true
}

// free adds operations that delete the IPAddress objects of the addresses ips. It skips those that do not exist or
// are not allocated to w.old, the old version of the Service.
func (w *write) free(ctx context.Context, ips []string) error {
	for _, ip := range ips {
		addr, err := parse(ip)
		if err != nil {
			continue // an invalid address cannot have been allocated
		}
		e := w.cfg.IPAddresses.Cached(addr.String())
		if e == nil {
			e, err = w.cfg.IPAddresses.Get(ctx, addr.String(), -1)
			if errors.Is(err, store.ErrNotFound) {
				continue // it was deleted manually
			}
			if err != nil {
				return err
			}
		}
		obj, err := e.Object()
		if err != nil {
			return err
		}
		if allocatedTo(obj.(*networkingv1.IPAddress), w.old) {
			w.ops = append(w.ops, w.cfg.IPAddresses.Delete(e))
		}
	}
	return nil
}

// allocatedTo reports whether the IPAddress a refers to the Service as its parent.
func allocatedTo(a *networkingv1.IPAddress, svc *corev1.Service) bool {
	ref := a.Spec.ParentRef
	return ref != nil && ref.Group == "" && ref.Resource == "services" && ref.Namespace == svc.Namespace && ref.Name == svc.Name
}

// createOp returns the operation that creates the IPAddress object for an address of a Service. The
// transaction fails if the object exists, so no address is allocated twice.
func (a *Allocator) createOp(addr netip.Addr, svc *corev1.Service) store.Op {
	obj := &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name:              addr.String(),
			UID:               uuid.NewUUID(),
			CreationTimestamp: metav1.Time{Time: time.Now().Truncate(time.Second)},
			Labels: map[string]string{
				networkingv1.LabelIPAddressFamily: string(family(addr)),
				networkingv1.LabelManagedBy:       managedBy,
			},
			ManagedFields: addressFields(),
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource:  "services",
			Namespace: svc.Namespace,
			Name:      svc.Name,
		}},
	}
	return a.cfg.IPAddresses.Create(addr.String(), obj, 0)
}

// addressFields returns the managed fields of a new IPAddress, with the API server as the owner of
// all its fields.
func addressFields() []metav1.ManagedFieldsEntry {
	const fields = `{"f:metadata":{"f:labels":{".":{},"f:ipaddress.kubernetes.io/ip-family":{},"f:ipaddress.kubernetes.io/managed-by":{}}},` +
		`"f:spec":{"f:parentRef":{".":{},"f:name":{},"f:namespace":{},"f:resource":{}}}}`
	now := metav1.NewTime(time.Now().UTC().Truncate(time.Second))
	owned := &metav1.FieldsV1{}
	owned.SetRawBytes([]byte(fields))
	return []metav1.ManagedFieldsEntry{{
		Manager: "kube-apiserver", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: networkingv1.SchemeGroupVersion.String(),
		Time: &now, FieldsType: "FieldsV1", FieldsV1: owned,
	}}
}

// parse parses an IP address of a Service. It accepts leading zeros, which old Services may have.
func parse(ip string) (netip.Addr, error) {
	parsed, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(ip))
	if !ok {
		return netip.Addr{}, fmt.Errorf("failed to parse service IP %q", ip)
	}
	return parsed.Unmap(), nil
}
