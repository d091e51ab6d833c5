package quota

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	volumehelper "k8s.io/component-helpers/storage/volume"
)

const (
	countServices = corev1.ResourceName("count/services")
	countClaims   = corev1.ResourceName("count/persistentvolumeclaims")
	// classSuffix separates the name of a storage class from the limited resource.
	classSuffix = ".storageclass.storage.k8s.io/"
)

// services creates the evaluator of Services, which counts also their node ports and load balancers.
func services(list generic.ListFuncByNamespace) quota.Evaluator {
	names := []corev1.ResourceName{countServices, corev1.ResourceServices, corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers}
	return &evaluator{
		resource: corev1.Resource("services"),
		list:     list,
		// The type of a Service can change on update.
		handles: func(a admission.Attributes) bool {
			return a.GetSubresource() == "" && (a.GetOperation() == admission.Create || a.GetOperation() == admission.Update)
		},
		names: func(in []corev1.ResourceName) []corev1.ResourceName { return quota.Intersection(in, names) },
		usage: serviceUsage,
	}
}

// serviceUsage returns the usage of one Service. A load balancer for which node ports are allocated uses one for each
// port, even before the allocation. item must be a Service.
func serviceUsage(item runtime.Object) (corev1.ResourceList, error) {
	s, err := as[*corev1.Service](item)
	if err != nil {
		return nil, err
	}
	balancers, ports := 0, 0
	switch s.Spec.Type {
	case corev1.ServiceTypeNodePort:
		ports = len(s.Spec.Ports)
	case corev1.ServiceTypeLoadBalancer:
		balancers = 1
		// Node ports are allocated later, so count the ports that will be allocated.
		ports = len(s.Spec.Ports)
		if wanted := s.Spec.AllocateLoadBalancerNodePorts; wanted != nil && !*wanted {
			ports = 0
			for i := range s.Spec.Ports {
				if s.Spec.Ports[i].NodePort != 0 {
					ports++
				}
			}
		}
	}
	return corev1.ResourceList{
		countServices: one(), corev1.ResourceServices: one(),
		corev1.ResourceServicesNodePorts: number(ports), corev1.ResourceServicesLoadBalancers: number(balancers),
	}, nil
}

// claims creates the evaluator of PersistentVolumeClaims, which counts claims and requested storage, in total and per
// storage class.
func claims(list generic.ListFuncByNamespace) quota.Evaluator {
	return &evaluator{
		resource: corev1.Resource("persistentvolumeclaims"),
		list:     list,
		handles: func(a admission.Attributes) bool {
			switch a.GetSubresource() {
			case "":
				return a.GetOperation() == admission.Create || a.GetOperation() == admission.Update
			case "status":
				now, err1 := as[*corev1.PersistentVolumeClaim](a.GetObject())
				old, err2 := as[*corev1.PersistentVolumeClaim](a.GetOldObject())
				return err1 == nil && err2 == nil && claimChanged(old, now)
			}
			return false
		},
		names: func(in []corev1.ResourceName) []corev1.ResourceName {
			var out []corev1.ResourceName
			for _, n := range in {
				if _, of, ok := strings.Cut(string(n), classSuffix); ok && (of == string(corev1.ResourceRequestsStorage) || of == string(corev1.ResourcePersistentVolumeClaims)) ||
					n == countClaims || n == corev1.ResourcePersistentVolumeClaims || n == corev1.ResourceRequestsStorage {
					out = append(out, n)
				}
			}
			return out
		},
		scope: func(s corev1.ScopedResourceSelectorRequirement, item runtime.Object) (bool, error) {
			c, err := as[*corev1.PersistentVolumeClaim](item)
			if err != nil || s.ScopeName != corev1.ResourceQuotaScopeVolumeAttributesClass {
				return false, err
			}
			return matchesName(s, attributesClasses(c))
		},
		usage: claimUsage,
	}
}

// claimChanged reports whether the status of a claim has changed in a way that affects quotas.
func claimChanged(old, now *corev1.PersistentVolumeClaim) bool {
	a, b := old.Status.AllocatedResources.Storage(), now.Status.AllocatedResources.Storage()
	if a.Cmp(*b) != 0 {
		return true
	}
	x, y := attributesClasses(old), attributesClasses(now)
	if len(x) != len(y) {
		return true
	}
	for i := range x {
		if x[i] != y[i] {
			return true
		}
	}
	return false
}

// attributesClasses returns the desired, current and target volume attributes classes of a claim,
// without empty and duplicate names. A quota scoped to any of these classes counts the claim.
func attributesClasses(c *corev1.PersistentVolumeClaim) []string {
	var out []string
	add := func(name string) {
		if slices.Contains(out, name) {
			return
		}
		if name != "" {
			out = append(out, name)
		}
	}
	for _, name := range []*string{c.Spec.VolumeAttributesClassName, c.Status.CurrentVolumeAttributesClassName} {
		if name != nil {
			add(*name)
		}
	}
	if c.Status.ModifyVolumeStatus != nil {
		add(c.Status.ModifyVolumeStatus.TargetVolumeAttributesClassName)
	}
	return out
}

// claimUsage returns the usage of one claim. If its volume has more storage than it requests, the allocated storage
// counts. item must be a PersistentVolumeClaim.
func claimUsage(item runtime.Object) (corev1.ResourceList, error) {
	c, err := as[*corev1.PersistentVolumeClaim](item)
	if err != nil {
		return nil, err
	}
	used := corev1.ResourceList{countClaims: one(), corev1.ResourcePersistentVolumeClaims: one()}
	class := volumehelper.GetPersistentVolumeClaimClass(c)
	ofClass := func(n corev1.ResourceName) corev1.ResourceName {
		return corev1.ResourceName(class + classSuffix + string(n))
	}
	if class != "" {
		used[ofClass(corev1.ResourcePersistentVolumeClaims)] = one()
	}
	size, ok := c.Spec.Resources.Requests[corev1.ResourceStorage]
	if !ok {
		return used, nil
	}
	if given, ok := c.Status.AllocatedResources[corev1.ResourceStorage]; ok && given.Cmp(size) > 0 {
		size = given
	}
	// Quotas count whole bytes.
	size = size.DeepCopy()
	size.RoundUp(0)
	used[corev1.ResourceRequestsStorage] = size
	if class != "" {
		used[ofClass(corev1.ResourceRequestsStorage)] = size
	}
	return used, nil
}
