// Package attachdetach attaches the volumes of CSI drivers to the nodes whose pods use them, and
// detaches them when no pod does. It creates and deletes VolumeAttachments, which the drivers'
// external attachers process, and it reports attached volumes in the nodes' status. Disks of iSCSI
// targets need no attacher: listing them in the node's status is sufficient.
package attachdetach

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/api/podrefs"
	"hyperkube/internal/pod/podutil"
)

// managedAnnotation is the annotation of nodes whose volumes this controller attaches and detaches.
const managedAnnotation = "volumes.kubernetes.io/controller-managed-attach-detach"

// Controller attaches and detaches volumes. Each sync handles one node. Use New to create it.
type Controller struct {
	*control.Loop
	env              control.Env
	forceDetachAfter time.Duration
	nodes            corelisters.NodeLister
	pods             cache.Indexer
	allPods          corelisters.PodLister
	claims           corelisters.PersistentVolumeClaimLister
	volumes          corelisters.PersistentVolumeLister
	drivers          storagelisters.CSIDriverLister
	attachments      storagelisters.VolumeAttachmentLister

	mu sync.Mutex
	// unusedSince is the time since which no pod has used an attachment, by its name.
	unusedSince map[string]time.Time // guarded by mu
	// pendingAttachments are the exclusive attachments that were created and are not in the cache yet, by volume.
	pendingAttachments map[string]pendingAttachment // guarded by mu
	// lastWritten is the volumesAttached list that was last written to a node's status, by node UID.
	lastWritten map[types.UID][]corev1.AttachedVolume // guarded by mu
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. force is the time
// after which a volume is detached although an unhealthy node reports it as in use; upstream uses six minutes. Zero
// disables this. New adds its event handlers to the informers, which the caller then starts before it calls Run.
func New(env control.Env, force time.Duration) (*Controller, error) {
	env = env.Defaulted()
	core, store := env.Informers.Core().V1(), env.Informers.Storage().V1()
	c := &Controller{
		env: env, forceDetachAfter: force, nodes: core.Nodes().Lister(), pods: core.Pods().Informer().GetIndexer(), allPods: core.Pods().Lister(),
		claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(),
		drivers: store.CSIDrivers().Lister(), attachments: store.VolumeAttachments().Lister(),
		unusedSince: map[string]time.Time{}, pendingAttachments: map[string]pendingAttachment{}, lastWritten: map[types.UID][]corev1.AttachedVolume{},
	}
	if err := control.AddNodeIndex(core.Pods().Informer()); err != nil {
		return nil, fmt.Errorf("indexing pods: %w", err)
	}
	c.Loop = control.NewLoop(env, "attachdetach", c.sync)
	pod := func(p *corev1.Pod) {
		if p.Spec.NodeName != "" && (podrefs.HasClaims(p) || hasDisks(p)) {
			c.Add(p.Spec.NodeName)
		}
	}
	claim := func(pvc *corev1.PersistentVolumeClaim) {
		if pvc.Spec.VolumeName != "" {
			c.enqueueNodesOf(pvc)
		}
	}
	node := control.Handlers(c.enqueueNode, func(old, cur *corev1.Node) {
		if !slices.Equal(old.Status.VolumesInUse, cur.Status.VolumesInUse) || healthy(old) != healthy(cur) || outOfService(old) != outOfService(cur) ||
			old.Annotations[managedAnnotation] != cur.Annotations[managedAnnotation] || !slices.Equal(old.Status.VolumesAttached, cur.Status.VolumesAttached) {
			c.enqueueNode(cur)
		}
		if diskRemoved(old, cur) {
			// Other nodes may be waiting for these disks.
			c.enqueueAllNodes()
		}
	}, func(n *corev1.Node) {
		c.forgetNode(n)
		c.enqueueNode(n)
		if diskRemoved(n, &corev1.Node{}) {
			c.enqueueAllNodes()
		}
	})
	attachment := control.AnyEvent(func(a *storagev1.VolumeAttachment) {
		if name := a.Spec.Source.PersistentVolumeName; name != nil {
			c.releaseReservation(*name, a.Name)
		}
		c.Add(a.Spec.NodeName)
	})
	// Another node may be waiting for a volume that was detached.
	released := control.Handlers(nil, nil, func(a *storagev1.VolumeAttachment) {
		c.markUsed(a.Name)
		c.enqueueAllNodes()
	})
	// The informer may deliver a volume after the claim that is bound to it.
	volume := func(pv *corev1.PersistentVolume) {
		if ref := pv.Spec.ClaimRef; ref != nil && (pv.Spec.CSI != nil || pv.Spec.ISCSI != nil) {
			if pvc, err := c.claims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name); err == nil && pvc.Spec.VolumeName == pv.Name {
				c.enqueueNodesOf(pvc)
			}
		}
	}
	driver := control.AnyEvent(func(*storagev1.CSIDriver) { c.enqueueAllNodes() })
	return c, errors.Join(
		c.Watch(core.Pods().Informer(), control.Handlers(pod, func(old, p *corev1.Pod) {
			if old.Spec.NodeName != p.Spec.NodeName || podutil.Terminal(old) != podutil.Terminal(p) {
				pod(p)
			}
		}, pod)),
		c.Watch(core.PersistentVolumeClaims().Informer(), control.Handlers(claim, func(old, pvc *corev1.PersistentVolumeClaim) {
			if old.Spec.VolumeName != pvc.Spec.VolumeName || old.Status.Phase != pvc.Status.Phase {
				claim(pvc)
			}
		}, nil)),
		c.Watch(core.Nodes().Informer(), node),
		c.Watch(store.VolumeAttachments().Informer(), attachment),
		c.Watch(store.VolumeAttachments().Informer(), released),
		c.Watch(store.CSIDrivers().Informer(), driver),
		c.Watch(core.PersistentVolumes().Informer(), control.Handlers(volume, func(old, pv *corev1.PersistentVolume) {
			if old.UID != pv.UID || old.Status.Phase != pv.Status.Phase {
				volume(pv)
			}
		}, nil)),
	)
}

// enqueueNode enqueues a node if it has attached volumes, volumes in use or VolumeAttachments. Other nodes need no
// sync.
func (c *Controller) enqueueNode(n *corev1.Node) {
	if len(n.Status.VolumesAttached) > 0 || len(n.Status.VolumesInUse) > 0 {
		c.Add(n.Name)
		return
	}
	all, err := c.attachments.List(labels.Everything())
	if err == nil && slices.ContainsFunc(all, func(a *storagev1.VolumeAttachment) bool { return a.Spec.NodeName == n.Name }) {
		c.Add(n.Name)
	}
}

// enqueueAllNodes enqueues all nodes that have pods with claims, because they may be waiting for a volume.
func (c *Controller) enqueueAllNodes() {
	all, err := c.allPods.List(labels.Everything())
	if err != nil {
		return
	}
	for _, p := range all {
		if p.Spec.NodeName != "" && podrefs.HasClaims(p) {
			c.Add(p.Spec.NodeName)
		}
	}
}

// enqueueNodesOf enqueues the nodes of the pods that use a claim.
func (c *Controller) enqueueNodesOf(pvc *corev1.PersistentVolumeClaim) {
	all, err := c.allPods.Pods(pvc.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	for _, p := range all {
		if p.Spec.NodeName != "" && slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return podrefs.ClaimName(p, &v) == pvc.Name }) {
			c.Add(p.Spec.NodeName)
		}
	}
}

// healthy reports whether the Ready condition of a node is true.
func healthy(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// outOfService reports whether a user has declared with the out-of-service taint that the node is shut down, so its
// volumes can be detached.
// https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown
func outOfService(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// attachmentName returns the name of the VolumeAttachment of a volume on a node. The format is
// upstream's.
func attachmentName(driver, handle, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

// uniqueName returns the name under which a node's status lists a CSI volume.
func uniqueName(src *corev1.CSIPersistentVolumeSource) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName(csiPrefix + src.Driver + "^" + src.VolumeHandle)
}

// csiPrefix is the prefix of the names under which a node's status lists CSI volumes.
const csiPrefix = "kubernetes.io/csi/"

// sync attaches the volumes that the pods on a node need, detaches those that are not needed any more, and updates the
// list of attached volumes in the node's status. Nodes without the annotation managedAnnotation are ignored. If the
// node was deleted, sync only detaches volumes.
func (c *Controller) sync(ctx context.Context, node string) error {
	wanted, disks, err := c.desiredVolumes(node)
	if err != nil {
		return err
	}
	have, err := c.attached(node)
	if err != nil {
		return err
	}
	n, err := c.nodes.Get(node)
	if err != nil {
		n = nil // deleted
	}
	if n != nil && n.Annotations[managedAnnotation] != "true" {
		return nil
	}
	var errs []error
	for name, w := range wanted {
		c.markUsed(name)
		switch a := have[name]; {
		case n == nil:
		case a == nil:
			errs = append(errs, c.attach(ctx, node, name, w))
		case a.Status.AttachError != nil && !a.Status.Attached:
			w.emitEvent(c.env.Events, corev1.EventTypeWarning, "FailedAttachVolume", fmt.Sprintf("AttachVolume.Attach failed for volume %q : %s", w.pv.Name, a.Status.AttachError.Message))
		}
	}
	drop := map[string]bool{}
	for name, a := range have {
		if wanted[name] != nil || !c.mayDetach(n, a) {
			continue
		}
		volume := *a.Spec.Source.PersistentVolumeName
		if _, err := c.volumes.Get(volume); err != nil {
			if gone, err := c.volumeDeleted(ctx, volume); err != nil || !gone {
				errs = append(errs, err)
				continue
			}
		}
		drop[name] = true
	}
	// Remove the volumes to be detached from the node's status first, so that the node does not
	// mount them.
	if n != nil {
		if err := c.updateNodeStatus(ctx, n, c.desiredDisks(n, disks), have, wanted, drop); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	for name := range drop {
		errs = append(errs, c.detach(ctx, have[name]))
	}
	return errors.Join(errs...)
}
