package disruption

import (
	"context"
	"fmt"
	"slices"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
)

// Scales returns the scale of an object of any kind with a scale subresource. Scale returns nil without an error if the
// object does not exist, and an error if the API server does not serve the kind, or serves it without a scale
// subresource.
type Scales interface {
	Scale(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (*autoscalingv1.Scale, error)
}

// DiscoveredScales gets scales from the API server. It finds the resource of a kind, which may be a custom resource, by
// discovery.
type DiscoveredScales struct{ Discovery discovery.DiscoveryInterface }

// Scale gets the scale of an object, as described by Scales. It sends two requests: for discovery, and for the scale.
func (s DiscoveredScales) Scale(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (*autoscalingv1.Scale, error) {
	list, err := s.Discovery.ServerResourcesForGroupVersion(kind.GroupVersion().String())
	if apierrors.IsNotFound(err) {
		list, err = &metav1.APIResourceList{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("discovering resource of %s: %w", kind, err)
	}
	i := slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool {
		return r.Kind == kind.Kind && (r.Group == "" || r.Group == kind.Group) && !isSubresource(r.Name)
	})
	if i < 0 {
		return nil, &meta.NoKindMatchError{GroupKind: kind.GroupKind(), SearchedVersions: []string{kind.Version}}
	}
	resource := list.APIResources[i].Name
	if !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == resource+"/scale" }) {
		return nil, fmt.Errorf("%s does not implement the scale subresource", schema.GroupResource{Group: kind.Group, Resource: resource})
	}
	path := []string{"/apis", kind.Group, kind.Version}
	if kind.Group == "" {
		path = []string{"/api", kind.Version}
	}
	path = append(path, "namespaces", namespace, resource, name, "scale")
	scale := &autoscalingv1.Scale{}
	err = s.Discovery.RESTClient().Get().AbsPath(path...).Do(ctx).Into(scale)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return scale, nil
}

// isSubresource reports whether a resource name from discovery names a subresource, such as "deployments/scale".
func isSubresource(name string) bool { return strings.Contains(name, "/") }

// expectedSize returns the sum of the desired sizes of the workloads that control the pods. unmanaged is true if some
// pod has no controller. It returns an error if the controller of a pod does not exist, or its size cannot be
// determined.
func (c *Controller) expectedSize(ctx context.Context, pods []*corev1.Pod) (total int32, unmanaged bool, err error) {
	asked := map[types.UID]bool{}
	sizes := map[types.UID]int32{}
	for _, p := range pods {
		ref := metav1.GetControllerOfNoCopy(p)
		if ref == nil {
			unmanaged = true
			continue
		}
		if asked[ref.UID] {
			continue
		}
		owner, n, ok, err := c.owner(ctx, ref, p.Namespace)
		if err != nil {
			return 0, unmanaged, err
		}
		if !ok {
			return 0, unmanaged, fmt.Errorf("found no controllers for pod %q", p.Name)
		}
		asked[ref.UID] = true
		sizes[owner] = n
	}
	for _, n := range sizes {
		total += n
	}
	return total, unmanaged, nil
}

// owner returns the workload that determines the number of the pods with controller ref, and its desired size. This is
// the referenced object, or the Deployment that owns the referenced ReplicaSet. ok is false if the object does not
// exist or has another UID.
func (c *Controller) owner(ctx context.Context, ref *metav1.OwnerReference, namespace string) (owner types.UID, size int32, ok bool, err error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return "", 0, false, err
	}
	kind := gv.WithKind(ref.Kind)
	if owner, size, ok := c.cachedOwner(kind.GroupKind(), ref, namespace); ok {
		return owner, size, true, nil
	}
	scale, err := c.scales.Scale(ctx, kind, namespace, ref.Name)
	if err != nil || scale == nil || scale.UID != ref.UID {
		return "", 0, false, err
	}
	return scale.UID, scale.Spec.Replicas, true, nil
}

// cachedOwner does the same as owner for the kinds that have an informer. It returns false for other kinds, and for
// objects that the cache does not contain.
func (c *Controller) cachedOwner(kind schema.GroupKind, ref *metav1.OwnerReference, namespace string) (types.UID, int32, bool) {
	switch kind {
	case schema.GroupKind{Kind: "ReplicationController"}:
		if rc, err := c.rcs.ReplicationControllers(namespace).Get(ref.Name); err == nil && rc.UID == ref.UID {
			return rc.UID, replicas(rc.Spec.Replicas), true
		}
	case schema.GroupKind{Group: "apps", Kind: "StatefulSet"}:
		if s, err := c.statefulSets.StatefulSets(namespace).Get(ref.Name); err == nil && s.UID == ref.UID {
			return s.UID, replicas(s.Spec.Replicas), true
		}
	case schema.GroupKind{Group: "apps", Kind: "ReplicaSet"}:
		rs, err := c.replicaSets.ReplicaSets(namespace).Get(ref.Name)
		if err != nil || rs.UID != ref.UID {
			return "", 0, false
		}
		up := metav1.GetControllerOfNoCopy(rs)
		if up == nil || up.Kind != "Deployment" {
			return rs.UID, replicas(rs.Spec.Replicas), true
		}
		if d, err := c.deployments.Deployments(namespace).Get(up.Name); err == nil && d.UID == up.UID {
			return d.UID, replicas(d.Spec.Replicas), true
		}
	}
	return "", 0, false
}

// replicas returns the value of a replicas field. If the field is nil, this is one, the API's default.
func replicas(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}
