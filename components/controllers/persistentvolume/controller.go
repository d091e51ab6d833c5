// Package persistentvolume binds claims to volumes, and reclaims volumes when their claims are
// deleted.
//
// https://kubernetes.io/docs/concepts/storage/persistent-volumes/
package persistentvolume

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	volumehelpers "k8s.io/component-helpers/storage/volume"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/components/controllers/internal/storage"
)

// Prefixes of the keys in the work queue: before the name of a volume, and before the namespace/name of a claim.
const (
	volumeKey = "volume/"
	claimKey  = "claim/"
)

// byVolume is the name of the index of claims by the name of their volume, which is "" for claims without a volume.
const byVolume = "spec.volumeName"

// Controller binds and reclaims PersistentVolumes. It syncs one volume or claim at a time with a single worker, because
// which volumes are available depends on previous bindings. Use New to create it.
type Controller struct {
	*control.Loop
	env     control.Env
	cfg     Config
	volumes corelisters.PersistentVolumeLister
	claims  corelisters.PersistentVolumeClaimLister
	byClaim cache.Indexer // index of claims
	classes storagelisters.StorageClassLister
	pods    corelisters.PodLister

	lastVolume storage.Latest[*corev1.PersistentVolume]
	lastClaim  storage.Latest[*corev1.PersistentVolumeClaim]
}

// Config contains settings of a Controller: the image of recycler pods, and whether volumes are provisioned
// dynamically.
type Config struct {
	// Image is the image of the pods that recycle volumes with reclaim policy Recycle. If empty,
	// such volumes are not recycled.
	Image string
	// NoProvisioning disables dynamic provisioning.
	NoProvisioning bool
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. It adds its event
// handlers to the informers, which the caller then starts before it calls Run.
func New(env control.Env, cfg Config) (*Controller, error) {
	env = env.Defaulted()
	env.Workers = 1
	core := env.Informers.Core().V1()
	c := &Controller{
		env: env, cfg: cfg,
		volumes: core.PersistentVolumes().Lister(),
		claims:  core.PersistentVolumeClaims().Lister(),
		byClaim: core.PersistentVolumeClaims().Informer().GetIndexer(),
		classes: env.Informers.Storage().V1().StorageClasses().Lister(),
		pods:    core.Pods().Lister(),
	}
	if err := addVolumeIndex(core.PersistentVolumeClaims().Informer()); err != nil {
		return nil, fmt.Errorf("indexing claims: %w", err)
	}
	c.Loop = control.NewLoop(env, "persistentvolume-binder", c.sync)
	if err := c.Watch(core.PersistentVolumes().Informer(), control.Handlers(c.volumeChanged, func(_, pv *corev1.PersistentVolume) { c.volumeChanged(pv) }, c.volumeGone)); err != nil {
		return nil, err
	}
	if err := c.Watch(core.PersistentVolumeClaims().Informer(), control.Handlers(c.claimChanged, func(_, pvc *corev1.PersistentVolumeClaim) { c.claimChanged(pvc) }, c.claimGone)); err != nil {
		return nil, err
	}
	if err := c.Watch(env.Informers.Storage().V1().StorageClasses().Informer(), control.AnyEvent(func(*storagev1.StorageClass) { c.enqueueUnboundClaims() })); err != nil {
		return nil, err
	}
	// Pods that recycle volumes.
	recycled := func(p *corev1.Pod) {
		if name := p.Annotations[recyclerAnnotation]; name != "" && p.Namespace == recyclerNamespace {
			c.Add(volumeKey + name)
		}
	}
	return c, c.Watch(core.Pods().Informer(), control.AnyEvent(recycled))
}

// addVolumeIndex adds the index byVolume to the informer of claims, unless it already has the index.
func addVolumeIndex(claims cache.SharedIndexInformer) error {
	if _, ok := claims.GetIndexer().GetIndexers()[byVolume]; ok {
		return nil
	}
	return claims.AddIndexers(cache.Indexers{byVolume: func(obj any) ([]string, error) {
		if pvc, ok := obj.(*corev1.PersistentVolumeClaim); ok {
			return []string{pvc.Spec.VolumeName}, nil
		}
		return nil, nil
	}})
}

// volumeChanged enqueues a volume and its claim. It also enqueues claims that have no volume if pv is available, or
// else those that name pv.
func (c *Controller) volumeChanged(pv *corev1.PersistentVolume) {
	c.Add(volumeKey + pv.Name)
	if ref := pv.Spec.ClaimRef; ref != nil {
		c.Add(claimKey + ref.Namespace + "/" + ref.Name)
	}
	switch {
	case pv.Spec.ClaimRef == nil && pv.Status.Phase == corev1.VolumeAvailable:
		c.enqueueUnboundClaims()
	default:
		c.enqueueClaimsOf(pv.Name)
	}
}

// volumeGone enqueues the claims of a deleted volume, which become lost.
func (c *Controller) volumeGone(pv *corev1.PersistentVolume) {
	c.lastVolume.Forget(pv)
	if ref := pv.Spec.ClaimRef; ref != nil {
		c.Add(claimKey + ref.Namespace + "/" + ref.Name)
	}
	c.enqueueClaimsOf(pv.Name)
}

// claimChanged enqueues a claim and the volume that it names.
func (c *Controller) claimChanged(pvc *corev1.PersistentVolumeClaim) {
	c.Add(claimKey + pvc.Namespace + "/" + pvc.Name)
	if pvc.Spec.VolumeName != "" {
		c.Add(volumeKey + pvc.Spec.VolumeName)
	}
}

// claimGone enqueues the volumes of a deleted claim, which are released.
func (c *Controller) claimGone(pvc *corev1.PersistentVolumeClaim) {
	c.lastClaim.Forget(pvc)
	if pvc.Spec.VolumeName != "" {
		c.Add(volumeKey + pvc.Spec.VolumeName)
		return
	}
	// A volume may be bound to the claim while the claim's reference to it was not written yet.
	all, err := c.volumes.List(labels.Everything())
	if err != nil {
		return
	}
	for _, pv := range all {
		if ref := pv.Spec.ClaimRef; ref != nil && ref.UID == pvc.UID {
			c.Add(volumeKey + pv.Name)
		}
	}
}

// enqueueUnboundClaims enqueues all claims without a volume, because a volume or storage class may be available now.
func (c *Controller) enqueueUnboundClaims() { c.enqueueClaimsOf("") }

// enqueueClaimsOf enqueues all claims whose spec names a volume.
func (c *Controller) enqueueClaimsOf(volume string) {
	objs, err := c.byClaim.ByIndex(byVolume, volume)
	if err != nil {
		return
	}
	for _, o := range objs {
		if pvc, ok := o.(*corev1.PersistentVolumeClaim); ok {
			c.Add(claimKey + pvc.Namespace + "/" + pvc.Name)
		}
	}
}

// sync handles a volume or a claim, depending on the prefix of key.
func (c *Controller) sync(ctx context.Context, key string) error {
	if name, ok := strings.CutPrefix(key, volumeKey); ok {
		pv, err := c.volume(name)
		if pv == nil || err != nil {
			return err
		}
		return c.syncVolume(ctx, pv)
	}
	namespace, name := control.SplitKey(strings.TrimPrefix(key, claimKey))
	pvc, err := c.claim(namespace, name)
	if pvc == nil || err != nil {
		return err
	}
	if _, bound := pvc.Annotations[volumehelpers.AnnBindCompleted]; bound {
		return c.syncBoundClaim(ctx, pvc)
	}
	return c.syncUnboundClaim(ctx, pvc)
}

// volume returns a volume in the latest version, which may be the controller's own last write, or nil if it does not
// exist.
func (c *Controller) volume(name string) (*corev1.PersistentVolume, error) {
	pv, err := c.volumes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return c.lastVolume.Get(pv), nil
}

// claim returns a claim in the latest version, which may be the controller's own last write, or nil if it does not
// exist.
func (c *Controller) claim(namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	pvc, err := c.claims.PersistentVolumeClaims(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return c.lastClaim.Get(pvc), nil
}

// allVolumes returns the latest versions of all volumes.
func (c *Controller) allVolumes() ([]*corev1.PersistentVolume, error) {
	listed, err := c.volumes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	all := make([]*corev1.PersistentVolume, len(listed))
	for i, pv := range listed {
		all[i] = c.lastVolume.Get(pv)
	}
	return all, nil
}
