package scheduler

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	volumehelpers "k8s.io/component-helpers/storage/volume"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
	"hyperkube/internal/base/broadcast"
)

// volumes implements framework.Volumes: the scheduler's view of storage. It returns objects of the informers' caches,
// or for claims and volumes of pods that are being bound the versions that the scheduler is writing. It is safe for
// concurrent use.
type volumes struct {
	claims      corelisters.PersistentVolumeClaimLister
	volumes     corelisters.PersistentVolumeLister
	classes     storagelisters.StorageClassLister
	drivers     storagelisters.CSIDriverLister
	csiNodes    storagelisters.CSINodeLister
	capacities  storagelisters.CSIStorageCapacityLister
	attachments storagelisters.VolumeAttachmentLister
	synced      []cache.DoneChecker
	// changed is notified when a claim or a volume changes.
	changed broadcast.Broadcast

	mu sync.Mutex // guards the fields below
	// assumedClaims are by namespace/name, assumedVolumes by name. They are valid until the cache
	// contains a newer version of the object from which they were created.
	assumedClaims  map[string]framework.Provisioned
	assumedVolumes map[string]framework.Bound
}

var _ framework.Volumes = (*volumes)(nil)

// newVolumes requests the informers for storage from factory. Their events are sent to in. The caller starts the
// factory.
func newVolumes(factory informers.SharedInformerFactory, in *inbox) (*volumes, error) {
	core, store := factory.Core().V1(), factory.Storage().V1()
	v := &volumes{
		claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(),
		classes: store.StorageClasses().Lister(), drivers: store.CSIDrivers().Lister(), csiNodes: store.CSINodes().Lister(),
		capacities: store.CSIStorageCapacities().Lister(), attachments: store.VolumeAttachments().Lister(),
		assumedClaims: map[string]framework.Provisioned{}, assumedVolumes: map[string]framework.Bound{},
	}
	event := func(e framework.Event) cache.ResourceEventHandler {
		notify := func(any) { in.put(message{event: e}) }
		return cache.ResourceEventHandlerFuncs{AddFunc: notify, UpdateFunc: func(_, _ any) { in.put(message{event: e}) }, DeleteFunc: notify}
	}
	for _, w := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{core.PersistentVolumeClaims().Informer(), handler(func(pvc *corev1.PersistentVolumeClaim, gone bool) {
			v.claimChanged(pvc, gone)
			v.changed.Send()
			if !gone {
				in.put(message{claim: pvc.Namespace + "/" + pvc.Name})
			}
		})},
		{core.PersistentVolumes().Informer(), handler(func(pv *corev1.PersistentVolume, gone bool) {
			v.volumeChanged(pv, gone)
			v.changed.Send()
			if !gone {
				in.put(message{event: framework.VolumeChanged})
			}
		})},
		{store.StorageClasses().Informer(), event(framework.ClassChanged)},
		{store.CSIDrivers().Informer(), event(framework.CSIDriverChanged)},
		{store.CSINodes().Informer(), event(framework.CSINodeChanged)},
		{store.CSIStorageCapacities().Informer(), event(framework.CapacityChanged)},
		{store.VolumeAttachments().Informer(), event(framework.AttachmentChanged)},
	} {
		reg, err := w.informer.AddEventHandler(w.handler)
		if err != nil {
			return nil, err
		}
		v.synced = append(v.synced, reg.HasSyncedChecker())
	}
	return v, nil
}

// claimChanged removes the assumed version of a claim when the informer has received a newer one, or when the claim was
// deleted (gone).
func (v *volumes) claimChanged(pvc *corev1.PersistentVolumeClaim, gone bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	key := pvc.Namespace + "/" + pvc.Name
	if a, ok := v.assumedClaims[key]; ok && isNewer(pvc, gone, a.Was) {
		delete(v.assumedClaims, key)
	}
}

// volumeChanged removes the assumed version of a PersistentVolume when the informer has received a newer one, or when
// the volume was deleted (gone).
func (v *volumes) volumeChanged(pv *corev1.PersistentVolume, gone bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if a, ok := v.assumedVolumes[pv.Name]; ok && isNewer(pv, gone, a.Was) {
		delete(v.assumedVolumes, pv.Name)
	}
}

// isNewer reports whether the object of an informer event, seen, is newer than was, the version from which an assumed
// object was made, or was deleted (gone). An event may be older than was, because the cache is updated before the event
// is handled.
func isNewer(seen metav1.Object, gone bool, was metav1.Object) bool {
	if gone {
		return seen.GetUID() == was.GetUID()
	}
	order, err := resourceversion.CompareResourceVersion(seen.GetResourceVersion(), was.GetResourceVersion())
	return err == nil && order > 0
}

// Claim returns a PersistentVolumeClaim, or the version that is being written. It returns nil if the claim does not
// exist.
func (v *volumes) Claim(namespace, name string) *corev1.PersistentVolumeClaim {
	pvc, err := v.claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	key := namespace + "/" + name
	if a, ok := v.assumedClaims[key]; ok {
		if a.Was.UID == pvc.UID && a.Was.ResourceVersion == pvc.ResourceVersion {
			return a.Claim
		}
		delete(v.assumedClaims, key)
	}
	return pvc
}

// Volume returns a PersistentVolume, or the version that is being written. It returns nil if the volume does not exist.
func (v *volumes) Volume(name string) *corev1.PersistentVolume {
	pv, err := v.volumes.Get(name)
	if err != nil {
		return nil
	}
	return v.assumed(pv)
}

// assumed returns the version of a cached PersistentVolume that is being written, or else pv.
func (v *volumes) assumed(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	v.mu.Lock()
	defer v.mu.Unlock()
	if a, ok := v.assumedVolumes[pv.Name]; ok {
		if a.Was.UID == pv.UID && a.Was.ResourceVersion == pv.ResourceVersion {
			return a.Volume
		}
		delete(v.assumedVolumes, pv.Name)
	}
	return pv
}

// VolumesOf returns the PersistentVolumes of a storage class, or for "" those without a class, in the versions that are
// being written.
func (v *volumes) VolumesOf(class string) []*corev1.PersistentVolume {
	// Listers read from the cache and do not fail, here and below.
	all, _ := v.volumes.List(labels.Everything())
	var out []*corev1.PersistentVolume
	for _, pv := range all {
		if volumehelpers.GetPersistentVolumeClass(pv) == class {
			out = append(out, v.assumed(pv))
		}
	}
	return out
}

// Class returns a StorageClass, or nil if it does not exist.
func (v *volumes) Class(name string) *storagev1.StorageClass {
	class, err := v.classes.Get(name)
	if err != nil {
		return nil
	}
	return class
}

// Driver returns a CSIDriver, or nil if it does not exist.
func (v *volumes) Driver(name string) *storagev1.CSIDriver {
	driver, err := v.drivers.Get(name)
	if err != nil {
		return nil
	}
	return driver
}

// CSINode returns the CSINode of a node, or nil if it does not exist.
func (v *volumes) CSINode(name string) *storagev1.CSINode {
	node, err := v.csiNodes.Get(name)
	if err != nil {
		return nil
	}
	return node
}

// Capacities returns all CSIStorageCapacities.
func (v *volumes) Capacities() []*storagev1.CSIStorageCapacity {
	all, _ := v.capacities.List(labels.Everything())
	return all
}

// Attachments returns all VolumeAttachments.
func (v *volumes) Attachments() []*storagev1.VolumeAttachment {
	all, _ := v.attachments.List(labels.Everything())
	return all
}

// assume makes the volumes and claims of a reservation visible to the next cycles before they are written, so that
// these do not choose the same volumes. r may be nil.
func (v *volumes) assume(r *framework.Reservation) {
	if r == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, b := range r.Bind {
		v.assumedVolumes[b.Volume.Name] = b
	}
	for _, p := range r.Provision {
		v.assumedClaims[p.Claim.Namespace+"/"+p.Claim.Name] = p
	}
}

// forget reverts assume after writing the reservation has failed. r may be nil.
func (v *volumes) forget(r *framework.Reservation) {
	if r == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, b := range r.Bind {
		delete(v.assumedVolumes, b.Volume.Name)
	}
	for _, p := range r.Provision {
		delete(v.assumedClaims, p.Claim.Namespace+"/"+p.Claim.Name)
	}
}

// reserve calls the filters that implement framework.Reserver for the chosen node n, and merges what they must write
// before the pod can be bound. It returns nil if nothing must be written.
func reserve(c *framework.Cycle, filters []framework.Filter, n *state.Node) (*framework.Reservation, error) {
	var all *framework.Reservation
	for _, p := range filters {
		r, ok := p.(framework.Reserver)
		if !ok {
			continue
		}
		one, err := r.Reserve(c, n)
		if err != nil {
			return nil, fmt.Errorf("running Reserve plugin %q: %w", p.Name(), err)
		}
		switch {
		case one == nil:
		case all == nil:
			all = one
		default:
			all.Bind, all.Provision = append(all.Bind, one.Bind...), append(all.Provision, one.Provision...)
			all.Timeout = max(all.Timeout, one.Timeout)
			all.Claims = append(all.Claims, one.Claims...)
			all.DevicesTimeout = max(all.DevicesTimeout, one.DevicesTimeout)
		}
	}
	return all, nil
}

// volumeBinder writes the volumes and claims of reservations to the API server while a pod is being bound. It is safe
// for concurrent use.
type volumeBinder struct {
	kube    kubernetes.Interface
	volumes *volumes
	nodes   corelisters.NodeLister
}

// bind writes the volumes and claims of a reservation and waits until the PersistentVolume controller and provisioners
// have bound the claims. It returns an error after r.Timeout, or if a provisioner rejects the node.
func (b *volumeBinder) bind(ctx context.Context, r *framework.Reservation, node string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.Timeout, errors.New("timed out waiting for the condition"))
	defer cancel()
	core := b.kube.CoreV1()
	for _, b := range r.Bind {
		if _, err := core.PersistentVolumes().Update(ctx, b.Volume, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	// written are the resource versions of claims with their selected node. Without a selected
	// node, only newer versions mean that the provisioner rejected the node.
	written := map[types.UID]string{}
	for _, p := range r.Provision {
		claim := p.Was
		if claim.Annotations[volumehelpers.AnnSelectedNode] != node {
			var err error
			if claim, err = core.PersistentVolumeClaims(p.Claim.Namespace).Update(ctx, p.Claim, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
		written[claim.UID] = claim.ResourceVersion
	}
	for {
		changed := b.volumes.changed.Next()
		done, err := b.bound(ctx, r, node, written)
		if done || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// bound reports whether all claims of a reservation are bound to volumes that the node can access. written contains the
// resource versions of the claims that bind has written, by UID. It returns an error if binding cannot succeed any
// more.
func (b *volumeBinder) bound(ctx context.Context, r *framework.Reservation, node string, written map[types.UID]string) (bool, error) {
	claims := make([]*corev1.PersistentVolumeClaim, 0, len(r.Bind)+len(r.Provision))
	for _, b := range r.Bind {
		claims = append(claims, b.Claim)
	}
	for _, p := range r.Provision {
		claims = append(claims, p.Claim)
	}
	for _, want := range claims {
		pvc, err := b.volumes.claims.PersistentVolumeClaims(want.Namespace).Get(want.Name)
		if err != nil || pvc.UID != want.UID || pvc.DeletionTimestamp != nil {
			return false, fmt.Errorf("claim %q was deleted or is being deleted", want.Namespace+"/"+want.Name)
		}
		if version, ok := written[want.UID]; ok && pvc.Annotations[volumehelpers.AnnSelectedNode] != node {
			if order, err := resourceversion.CompareResourceVersion(pvc.ResourceVersion, version); err != nil || order < 0 {
				return false, nil // the cache is stale
			}
			return false, fmt.Errorf("provisioning failed for PVC %q", pvc.Name)
		}
		if pvc.Spec.VolumeName == "" || !metav1.HasAnnotation(pvc.ObjectMeta, volumehelpers.AnnBindCompleted) {
			return false, nil
		}
		pv, err := b.volumes.volumes.Get(pvc.Spec.VolumeName)
		if err != nil {
			return false, nil // the cache is stale
		}
		n, err := b.nodes.Get(node)
		if err != nil {
			return false, fmt.Errorf("node %q was deleted", node)
		}
		if err := volumehelpers.CheckNodeAffinity(pv, n.Labels); err != nil {
			return false, fmt.Errorf("pv %q node affinity doesn't match node %q: %w", pv.Name, node, err)
		}
	}
	return true, ctx.Err()
}
