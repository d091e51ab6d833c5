package garbagecollector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/util/retry"

	"hyperkube/components/controllers/internal/control"
)

// virtualRecheck is the interval at which the collector gets an owner again that exists in the API but that no monitor
// has observed.
const virtualRecheck = 2 * time.Minute

// errUnknownNamespace means that a cluster-scoped object refers to a namespaced owner. The owner cannot be looked up,
// because its namespace is unknown, so the object is not deleted.
var errUnknownNamespace = errors.New("cluster-scoped object refers to a namespaced owner")

// resource returns the metadata client for objects of a resource. namespace is ignored for cluster-scoped resources.
func (c *Collector) resource(m mapping, namespace string) metadata.ResourceInterface {
	if m.namespaced {
		return c.cfg.Metadata.Resource(m.gvr).Namespace(namespace)
	}
	return c.cfg.Metadata.Resource(m.gvr)
}

// attemptDelete is the sync function of the queue deletes. It gets an object from the API server and deletes it if all
// its owners are absent. For an object that is only known from owner references (a virtual node), it checks whether
// the object exists. For an owner in foreground deletion, it checks whether the owner's finalizer can be removed.
func (c *Collector) attemptDelete(ctx context.Context, uid types.UID) error {
	n, ok := c.graph.get(uid)
	if !ok {
		return nil
	}
	if n.deleting && !n.foreground && !n.virtual {
		return nil // already being deleted
	}
	m, err := c.locate(n.gvk)
	if err != nil {
		if n.virtual {
			// The virtual node, and so its dependents, stay until its kind is served.
			c.triggerDiscovery()
		}
		return err
	}
	if m.namespaced && n.namespace == "" {
		if n.virtual {
			return nil // a cluster-scoped object cannot have a namespaced owner
		}
		return fmt.Errorf("object of namespaced kind %s has no namespace", n.gvk)
	}
	api := c.resource(m, n.namespace)
	live, err := api.Get(ctx, n.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && live.UID != uid {
		if n.virtual {
			id := n.identity
			if !m.namespaced {
				id.namespace = ""
			}
			c.absent.Add(id.absentKey(), nil)
			c.graph.removeVirtual(uid)
			return nil
		}
		c.graph.forget(uid)
		return nil
	}
	if err != nil {
		return err
	}
	if n.virtual {
		// The owner exists, and its monitor should observe it. Check again later, in case there is
		// no monitor or it cannot list.
		c.deletes.AddAfter(string(uid), virtualRecheck)
		return nil
	}
	if n.foreground {
		return c.finishForeground(ctx, api, n)
	}
	return c.syncOwners(ctx, api, n, live)
}

// syncOwners deletes an object of which no owner exists. If some owners exist, it removes the references to the absent
// ones. n is the object's node and live its current metadata.
func (c *Collector) syncOwners(ctx context.Context, api metadata.ResourceInterface, n view, live *metav1.PartialObjectMetadata) error {
	if len(live.OwnerReferences) == 0 {
		return nil
	}
	solid, dangling, waiting, err := c.classify(ctx, n, live.OwnerReferences)
	if errors.Is(err, errUnknownNamespace) {
		return nil
	}
	if err != nil {
		return err
	}
	c.graph.restoreDependent(live.UID, solid)
	switch {
	case len(solid) > 0:
		if len(dangling)+len(waiting) == 0 {
			return nil
		}
		// The object is kept because of its remaining owners.
		return c.dropOwners(ctx, api, live, uidsOf(dangling, waiting))
	case len(waiting) > 0 && len(n.dependents) > 0:
		// The owner waits for this object, and this object waits for its dependents. In a cycle,
		// one of them must stop blocking.
		for _, d := range n.dependents {
			if d.foreground {
				if err := c.unblock(ctx, api, live); err != nil {
					return err
				}
				break
			}
		}
		return c.delete(ctx, api, live, metav1.DeletePropagationForeground)
	}
	policy := metav1.DeletePropagationBackground
	switch {
	case has(live.Finalizers, metav1.FinalizerOrphanDependents):
		policy = metav1.DeletePropagationOrphan
	case has(live.Finalizers, metav1.FinalizerDeleteDependents):
		policy = metav1.DeletePropagationForeground
	}
	return c.delete(ctx, api, live, policy)
}

// uidsOf returns the UIDs of the owners in all lists of owner references.
func uidsOf(lists ...[]metav1.OwnerReference) []types.UID {
	var out []types.UID
	for _, l := range lists {
		for _, ref := range l {
			out = append(out, ref.UID)
		}
	}
	return out
}

// classify divides the owner references of an object: solid ones, whose owner exists, dangling ones, whose owner does
// not exist, and waiting ones, whose owner is in foreground deletion and waits for its dependents. It gets each owner
// from the API server, unless the cache c.absent contains it.
func (c *Collector) classify(ctx context.Context, n view, refs []metav1.OwnerReference) (solid, dangling, waiting []metav1.OwnerReference, err error) {
	for _, ref := range refs {
		gv, err := schema.ParseGroupVersion(ref.APIVersion)
		if err != nil {
			return nil, nil, nil, err
		}
		m, err := c.locate(gv.WithKind(ref.Kind))
		if err != nil {
			c.triggerDiscovery()
			return nil, nil, nil, err
		}
		if m.namespaced && n.namespace == "" {
			return nil, nil, nil, errUnknownNamespace
		}
		key := identity{gvk: gv.WithKind(ref.Kind), name: ref.Name, uid: ref.UID}
		if m.namespaced {
			key.namespace = n.namespace
		}
		key = key.absentKey()
		if _, known := c.absent.Get(key); known {
			dangling = append(dangling, ref)
			continue
		}
		owner, err := c.resource(m, n.namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) || err == nil && owner.UID != ref.UID:
			c.absent.Add(key, nil)
			dangling = append(dangling, ref)
		case err != nil:
			return nil, nil, nil, err
		case owner.DeletionTimestamp != nil && has(owner.Finalizers, metav1.FinalizerDeleteDependents):
			waiting = append(waiting, ref)
		default:
			solid = append(solid, ref)
		}
	}
	return solid, dangling, waiting, nil
}

// finishForeground completes the foreground deletion of an owner: it removes the finalizer if no dependent blocks the
// deletion any more. Otherwise it enqueues the blocking dependents for deletion.
func (c *Collector) finishForeground(ctx context.Context, api metadata.ResourceInterface, n view) error {
	blocked := false
	for _, d := range n.dependents {
		if ref := d.owner(n.uid); ref != nil && blocks(*ref) {
			blocked = true
			if !d.foreground {
				c.deletes.Add(string(d.uid))
			}
		}
	}
	if blocked {
		return nil // the deletion of the last dependent triggers another sync
	}
	return c.removeFinalizer(ctx, api, n.identity, metav1.FinalizerDeleteDependents)
}

// removeFinalizer removes a finalizer from an object. It is not an error if the object was deleted or does not have the
// finalizer.
func (c *Collector) removeFinalizer(ctx context.Context, api metadata.ResourceInterface, id identity, finalizer string) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		live, err := api.Get(ctx, id.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if live.UID != id.uid || !has(live.Finalizers, finalizer) {
			return nil
		}
		rest := slices.DeleteFunc(slices.Clone(live.Finalizers), func(f string) bool { return f == finalizer })
		err = c.merge(ctx, api, live, map[string]any{"finalizers": rest})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// merge sends a merge patch of the object's metadata. The patch fails with a conflict if the object is not at the UID
// and resource version of live any more.
func (c *Collector) merge(ctx context.Context, api metadata.ResourceInterface, live *metav1.PartialObjectMetadata, meta map[string]any) error {
	meta["uid"] = live.UID
	meta["resourceVersion"] = live.ResourceVersion
	patch, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return err
	}
	_, err = api.Patch(ctx, live.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// dropOwners removes the owner references with these UIDs from an object. live is the object's current metadata.
func (c *Collector) dropOwners(ctx context.Context, api metadata.ResourceInterface, live *metav1.PartialObjectMetadata, uids []types.UID) error {
	rest := slices.DeleteFunc(slices.Clone(live.OwnerReferences), func(r metav1.OwnerReference) bool { return slices.Contains(uids, r.UID) })
	if len(rest) == len(live.OwnerReferences) {
		return nil
	}
	if rest == nil {
		rest = []metav1.OwnerReference{}
	}
	return c.merge(ctx, api, live, map[string]any{"ownerReferences": rest})
}

// unblock sets blockOwnerDeletion to false in all owner references of an object, so that its owners can be deleted
// before it. It clears the resource version of live, which the patch changes.
func (c *Collector) unblock(ctx context.Context, api metadata.ResourceInterface, live *metav1.PartialObjectMetadata) error {
	refs := slices.Clone(live.OwnerReferences)
	no, changed := false, false
	for i := range refs {
		if blocks(refs[i]) {
			refs[i].BlockOwnerDeletion = &no
			changed = true
		}
	}
	if !changed {
		return nil
	}
	if err := c.merge(ctx, api, live, map[string]any{"ownerReferences": refs}); err != nil {
		return err
	}
	// The deletion that follows must not require the old resource version.
	live.ResourceVersion = ""
	return nil
}

// delete deletes an object with a propagation policy. The deletion fails with a conflict if the object has changed
// since live was read, because its owners were checked at that version.
func (c *Collector) delete(ctx context.Context, api metadata.ResourceInterface, live *metav1.PartialObjectMetadata, policy metav1.DeletionPropagation) error {
	uid := live.UID
	pre := &metav1.Preconditions{UID: &uid}
	if rv := live.ResourceVersion; rv != "" {
		// The owners were checked at this resource version.
		pre.ResourceVersion = &rv
	}
	err := api.Delete(ctx, live.Name, metav1.DeleteOptions{PropagationPolicy: &policy, Preconditions: pre})
	if apierrors.IsNotFound(err) {
		c.graph.forget(uid)
		return nil
	}
	return err
}

// attemptOrphan is the sync function of the queue orphans, whose keys are owners that are deleted with the propagation
// policy Orphan. It removes the references to an owner from all its dependents, and then the owner's finalizer.
func (c *Collector) attemptOrphan(ctx context.Context, uid types.UID) error {
	n, ok := c.graph.get(uid)
	if !ok || n.virtual {
		return nil
	}
	m, err := c.locate(n.gvk)
	if err != nil {
		return err
	}
	errs := make([]error, len(n.dependents))
	limit := make(chan struct{}, 20)
	var wg sync.WaitGroup
	for i, d := range n.dependents {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			errs[i] = c.removeOwner(ctx, d, uid)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("orphaning dependents of %s %s/%s: %w", n.gvk.Kind, n.namespace, n.name, err)
	}
	return c.removeFinalizer(ctx, c.resource(m, n.namespace), n.identity, metav1.FinalizerOrphanDependents)
}

// removeOwner removes the references to the UID owner from the dependent d. It is not an error if d was deleted.
func (c *Collector) removeOwner(ctx context.Context, d view, owner types.UID) error {
	m, err := c.locate(d.gvk)
	if err != nil {
		return err
	}
	api := c.resource(m, d.namespace)
	// Types with strategic merge patch need one request. Custom resources do not support it.
	patch, err := control.ReleasePatch(&metav1.ObjectMeta{UID: d.uid}, owner, nil)
	if err != nil {
		return err
	}
	_, err = api.Patch(ctx, d.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsUnsupportedMediaType(err) {
		return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			live, err := api.Get(ctx, d.name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) || err == nil && live.UID != d.uid {
				return nil
			}
			if err != nil {
				return err
			}
			return c.dropOwners(ctx, api, live, []types.UID{owner})
		})
	}
	// Invalid, or a conflict of the UID: the name belongs to another object.
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		return nil
	}
	return err
}
