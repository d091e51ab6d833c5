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

// revisit is how long after an owner was found that no monitor has told of it is
// looked for again.
const revisit = 2 * time.Minute

// errNowhere says that an owner cannot be looked for, for its namespace is not told:
// what it owns is kept, and left as it is.
var errNowhere = errors.New("a cluster-wide object names a namespaced owner")

// resource returns the API of the objects where id is.
func (c *Collector) resource(m mapping, namespace string) metadata.ResourceInterface {
	if m.namespaced {
		return c.cfg.Metadata.Resource(m.gvr).Namespace(namespace)
	}
	return c.cfg.Metadata.Resource(m.gvr)
}

// attemptDelete looks whether an object should go, and deletes it if so.
func (c *Collector) attemptDelete(ctx context.Context, uid types.UID) error {
	n, ok := c.graph.get(uid)
	if !ok {
		return nil
	}
	if n.deleting && !n.foreground && !n.virtual {
		return nil // on its way
	}
	m, err := c.locate(n.gvk)
	if err != nil {
		if n.virtual {
			// Its dependents, by whose word alone it exists, will stay with us.
			c.lookAgain()
		}
		return err
	}
	if m.namespaced && n.namespace == "" {
		if n.virtual {
			return nil // a cluster-wide object cannot have a namespaced owner
		}
		return fmt.Errorf("namespaced %s without a namespace", n.gvk)
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
			c.graph.absent(uid)
			return nil
		}
		c.graph.vanished(uid)
		return nil
	}
	if err != nil {
		return err
	}
	if n.virtual {
		// It is there, and its monitor will tell of it; but for when there is
		// none, or it cannot list.
		c.deletes.AddAfter(string(uid), revisit)
		return nil
	}
	if n.foreground {
		return c.finishForeground(ctx, api, n)
	}
	return c.goWithOwners(ctx, api, n, live)
}

// goWithOwners deletes an object that none of its owners keeps any more, and takes from
// others the references to owners that are gone.
func (c *Collector) goWithOwners(ctx context.Context, api metadata.ResourceInterface, n view, live *metav1.PartialObjectMetadata) error {
	if len(live.OwnerReferences) == 0 {
		return nil
	}
	solid, dangling, waiting, err := c.classify(ctx, n, live.OwnerReferences)
	if errors.Is(err, errNowhere) {
		return nil
	}
	if err != nil {
		return err
	}
	c.graph.confirm(live.UID, solid)
	switch {
	case len(solid) > 0:
		if len(dangling)+len(waiting) == 0 {
			return nil
		}
		// It lives on with the owners that are left.
		return c.dropOwners(ctx, api, live, uidsOf(dangling, waiting))
	case len(waiting) > 0 && len(n.dependents) > 0:
		// The owner waits for this one, and this one for its own dependents.
		// In a circle, somebody has to let go.
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

func uidsOf(lists ...[]metav1.OwnerReference) []types.UID {
	var out []types.UID
	for _, l := range lists {
		for _, ref := range l {
			out = append(out, ref.UID)
		}
	}
	return out
}

// classify sorts owners into those that are there, those that are not, and
// those that wait for their dependents to go.
func (c *Collector) classify(ctx context.Context, n view, refs []metav1.OwnerReference) (solid, dangling, waiting []metav1.OwnerReference, err error) {
	for _, ref := range refs {
		gv, err := schema.ParseGroupVersion(ref.APIVersion)
		if err != nil {
			return nil, nil, nil, err
		}
		m, err := c.locate(gv.WithKind(ref.Kind))
		if err != nil {
			c.lookAgain()
			return nil, nil, nil, err
		}
		if m.namespaced && n.namespace == "" {
			return nil, nil, nil, errNowhere
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

// finishForeground lets an owner go that none of its dependents holds any more.
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
		return nil // the last of them wakes us
	}
	return c.removeFinalizer(ctx, api, n.identity, metav1.FinalizerDeleteDependents)
}

// removeFinalizer takes a finalizer off an object, if it is there at all.
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

// merge sends a merge patch of metadata that holds for just this revision.
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

// dropOwners takes references to owners off an object.
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

// unblock makes all references of an object such that owners need not wait for
// it.
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
	// The deletion that follows must not insist on the former revision.
	live.ResourceVersion = ""
	return nil
}

func (c *Collector) delete(ctx context.Context, api metadata.ResourceInterface, live *metav1.PartialObjectMetadata, policy metav1.DeletionPropagation) error {
	uid := live.UID
	pre := &metav1.Preconditions{UID: &uid}
	if rv := live.ResourceVersion; rv != "" {
		// Its owners were judged at this revision.
		pre.ResourceVersion = &rv
	}
	err := api.Delete(ctx, live.Name, metav1.DeleteOptions{PropagationPolicy: &policy, Preconditions: pre})
	if apierrors.IsNotFound(err) {
		c.graph.vanished(uid)
		return nil
	}
	return err
}

// attemptOrphan frees the dependents of an owner that is deleted without them,
// and then lets it go.
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
			errs[i] = c.free(ctx, d, uid)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("orphaning the dependents of %s %s/%s: %w", n.gvk.Kind, n.namespace, n.name, err)
	}
	return c.removeFinalizer(ctx, c.resource(m, n.namespace), n.identity, metav1.FinalizerOrphanDependents)
}

// free takes the reference to owner off a dependent.
func (c *Collector) free(ctx context.Context, d view, owner types.UID) error {
	m, err := c.locate(d.gvk)
	if err != nil {
		return err
	}
	api := c.resource(m, d.namespace)
	// One request where the type has a strategic merge patch; custom resources
	// have none.
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
	// Invalid or conflict with our UID: another object of that name.
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		return nil
	}
	return err
}
