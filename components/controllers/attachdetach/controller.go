// Package attachdetach has the volumes of CSI drivers attached to the nodes whose
// pods use them, and detached when none does: it makes and deletes
// VolumeAttachments, which the drivers' attachers act upon, and tells the nodes
// by their status. Disks of iSCSI targets need nobody who attaches them: being in a
// node's status is all there is to it.
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
	"hyperkube/internal/podfacts"
	"hyperkube/internal/podrefs"
)

// managed is the annotation of nodes whose volumes this controller attaches.
const managed = "volumes.kubernetes.io/controller-managed-attach-detach"

// Controller syncs nodes. Make it with New.
type Controller struct {
	*control.Loop
	env         control.Env
	force       time.Duration
	nodes       corelisters.NodeLister
	pods        cache.Indexer
	allPods     corelisters.PodLister
	claims      corelisters.PersistentVolumeClaimLister
	volumes     corelisters.PersistentVolumeLister
	drivers     storagelisters.CSIDriverLister
	attachments storagelisters.VolumeAttachmentLister

	mu sync.Mutex
	// unwanted is since when nobody has wanted an attachment, by its name.
	unwanted map[string]time.Time // guarded by mu
	// made are the attachments to one node alone that were made and not seen yet, by
	// the volume.
	made map[string]attaching // guarded by mu
	// written is what nodes' status was last made to say.
	written map[types.UID][]corev1.AttachedVolume // guarded by mu
}

// New makes the controller. force is after how long a volume is detached though
// an unhealthy node says that it is in use, upstream's six minutes; zero is
// never.
func New(env control.Env, force time.Duration) (*Controller, error) {
	env = env.Defaulted()
	core, store := env.Informers.Core().V1(), env.Informers.Storage().V1()
	c := &Controller{
		env: env, force: force, nodes: core.Nodes().Lister(), pods: core.Pods().Informer().GetIndexer(), allPods: core.Pods().Lister(),
		claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(),
		drivers: store.CSIDrivers().Lister(), attachments: store.VolumeAttachments().Lister(),
		unwanted: map[string]time.Time{}, made: map[string]attaching{}, written: map[types.UID][]corev1.AttachedVolume{},
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
			c.usersOf(pvc)
		}
	}
	node := control.Handlers(c.node, func(old, cur *corev1.Node) {
		if !slices.Equal(old.Status.VolumesInUse, cur.Status.VolumesInUse) || healthy(old) != healthy(cur) || outOfService(old) != outOfService(cur) ||
			old.Annotations[managed] != cur.Annotations[managed] || !slices.Equal(old.Status.VolumesAttached, cur.Status.VolumesAttached) {
			c.node(cur)
		}
		if disksTaken(old, cur) {
			// Others may wait for them.
			c.everyNode()
		}
	}, func(n *corev1.Node) {
		c.forget(n)
		c.node(n)
		if disksTaken(n, &corev1.Node{}) {
			c.everyNode()
		}
	})
	attachment := control.Every(func(a *storagev1.VolumeAttachment) {
		if name := a.Spec.Source.PersistentVolumeName; name != nil {
			c.seen(*name, a.Name)
		}
		c.Add(a.Spec.NodeName)
	})
	// A volume that was detached from one node may be waited for on another.
	released := control.Handlers(nil, nil, func(a *storagev1.VolumeAttachment) {
		c.keep(a.Name)
		c.everyNode()
	})
	// A volume may be seen later than the claim that is bound to it.
	volume := func(pv *corev1.PersistentVolume) {
		if ref := pv.Spec.ClaimRef; ref != nil && (pv.Spec.CSI != nil || pv.Spec.ISCSI != nil) {
			if pvc, err := c.claims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name); err == nil && pvc.Spec.VolumeName == pv.Name {
				c.usersOf(pvc)
			}
		}
	}
	driver := control.Every(func(*storagev1.CSIDriver) { c.everyNode() })
	return c, errors.Join(
		c.Watch(core.Pods().Informer(), control.Handlers(pod, func(old, p *corev1.Pod) {
			if old.Spec.NodeName != p.Spec.NodeName || podfacts.Terminal(old) != podfacts.Terminal(p) {
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

// node works on a node if it has anything to do with attaching.
func (c *Controller) node(n *corev1.Node) {
	if len(n.Status.VolumesAttached) > 0 || len(n.Status.VolumesInUse) > 0 {
		c.Add(n.Name)
		return
	}
	all, err := c.attachments.List(labels.Everything())
	if err == nil && slices.ContainsFunc(all, func(a *storagev1.VolumeAttachment) bool { return a.Spec.NodeName == n.Name }) {
		c.Add(n.Name)
	}
}

// everyNode works on all nodes with pods that have claims.
func (c *Controller) everyNode() {
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

// usersOf works on the nodes of a claim's pods.
func (c *Controller) usersOf(pvc *corev1.PersistentVolumeClaim) {
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

func healthy(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// outOfService tells whether somebody vouches for a node being off.
// https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown
func outOfService(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// attachmentName is upstream's name of the attachment of a volume to a node.
func attachmentName(driver, handle, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

// uniqueName is how a node speaks of a volume.
func uniqueName(src *corev1.CSIPersistentVolumeSource) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName(csiPrefix + src.Driver + "^" + src.VolumeHandle)
}

const csiPrefix = "kubernetes.io/csi/"

// sync attaches and detaches the volumes of one node.
func (c *Controller) sync(ctx context.Context, node string) error {
	wanted, disks, err := c.wanted(node)
	if err != nil {
		return err
	}
	have, err := c.attached(node)
	if err != nil {
		return err
	}
	n, err := c.nodes.Get(node)
	if err != nil {
		n = nil // it is gone
	}
	if n != nil && n.Annotations[managed] != "true" {
		return nil
	}
	var errs []error
	for name, w := range wanted {
		c.keep(name)
		switch a := have[name]; {
		case n == nil:
		case a == nil:
			errs = append(errs, c.attach(ctx, node, name, w))
		case a.Status.AttachError != nil && !a.Status.Attached:
			w.tell(c.env.Events, corev1.EventTypeWarning, "FailedAttachVolume", fmt.Sprintf("AttachVolume.Attach failed for volume %q : %s", w.pv.Name, a.Status.AttachError.Message))
		}
	}
	drop := map[string]bool{}
	for name, a := range have {
		if wanted[name] != nil || !c.mayDetach(n, a) {
			continue
		}
		volume := *a.Spec.Source.PersistentVolumeName
		if _, err := c.volumes.Get(volume); err != nil {
			if gone, err := c.surelyGone(ctx, volume); err != nil || !gone {
				errs = append(errs, err)
				continue
			}
		}
		drop[name] = true
	}
	// A node must not mount what is about to go.
	if n != nil {
		if err := c.tellNode(ctx, n, c.give(n, disks), have, wanted, drop); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	for name := range drop {
		errs = append(errs, c.detach(ctx, have[name]))
	}
	return errors.Join(errs...)
}
