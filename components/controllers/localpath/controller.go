// Package localpath provisions volumes that are directories on a node's disk, and deletes them. The
// kubelet creates the directory when the volume is first used. A pod on the node removes it,
// because the controller cannot access the node's disk.
package localpath

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	volumehelpers "k8s.io/component-helpers/storage/volume"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/pod/localpath"
)

// Prefixes of the keys in the work queue: before the name of a volume, and before the namespace/name of a claim.
const (
	volumeKey = "volume/"
	claimKey  = "claim/"
)

// Controller creates, expands and deletes the volumes of the local path provisioner.
type Controller struct {
	*control.Loop
	env     control.Env
	image   string
	volumes corelisters.PersistentVolumeLister
	claims  corelisters.PersistentVolumeClaimLister
	classes storagelisters.StorageClassLister
	nodes   corelisters.NodeLister
	pods    corelisters.PodLister
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. image is the
// container image of the pods that remove directories. The caller then starts the informers and calls Run.
func New(env control.Env, image string) (*Controller, error) {
	env = env.Defaulted()
	core := env.Informers.Core().V1()
	c := &Controller{
		env: env, image: image,
		volumes: core.PersistentVolumes().Lister(),
		claims:  core.PersistentVolumeClaims().Lister(),
		classes: env.Informers.Storage().V1().StorageClasses().Lister(),
		nodes:   core.Nodes().Lister(),
		pods:    core.Pods().Lister(),
	}
	c.Loop = control.NewLoop(env, "local-path-provisioner", c.sync)
	c.Await(env.Informers.Storage().V1().StorageClasses().Informer())
	claim := func(pvc *corev1.PersistentVolumeClaim) {
		if pvc.Annotations[volumehelpers.AnnStorageProvisioner] == localpath.Provisioner {
			c.Add(claimKey + pvc.Namespace + "/" + pvc.Name)
		}
	}
	volume := func(pv *corev1.PersistentVolume) {
		if localpath.IsManaged(pv) {
			c.Add(volumeKey + pv.Name)
		}
	}
	pod := func(p *corev1.Pod) {
		if name := p.Annotations[removerAnnotation]; name != "" && p.Namespace == metav1.NamespaceSystem {
			c.Add(volumeKey + name)
		}
	}
	node := control.Handlers(c.nodeAdded, func(old, cur *corev1.Node) {
		if old.Annotations[localpath.Annotation] != cur.Annotations[localpath.Annotation] {
			c.nodeAdded(cur)
		}
	}, c.nodeDeleted)
	return c, errors.Join(
		c.Watch(core.PersistentVolumeClaims().Informer(), control.Handlers(claim, func(_, pvc *corev1.PersistentVolumeClaim) { claim(pvc) }, nil)),
		c.Watch(core.PersistentVolumes().Informer(), control.Handlers(volume, func(_, pv *corev1.PersistentVolume) { volume(pv) }, nil)),
		c.Watch(core.Pods().Informer(), control.AnyEvent(pod)),
		c.Watch(core.Nodes().Informer(), node),
	)
}

// nodeAdded enqueues the claims of this provisioner without a volume, because the added or changed node may be suitable
// for them.
func (c *Controller) nodeAdded(*corev1.Node) {
	all, err := c.claims.List(labels.Everything())
	if err != nil {
		return
	}
	for _, pvc := range all {
		if pvc.Spec.VolumeName == "" && pvc.Annotations[volumehelpers.AnnStorageProvisioner] == localpath.Provisioner {
			c.Add(claimKey + pvc.Namespace + "/" + pvc.Name)
		}
	}
}

// nodeDeleted enqueues the volumes that are not bound, because their directories no longer exist if they were on the
// deleted node.
func (c *Controller) nodeDeleted(*corev1.Node) {
	all, err := c.volumes.List(labels.Everything())
	if err != nil {
		return
	}
	for _, pv := range all {
		if localpath.IsManaged(pv) && pv.Status.Phase != corev1.VolumeBound {
			c.Add(volumeKey + pv.Name)
		}
	}
}

// sync deletes the volume, or provisions or expands the volume of the claim, depending on the prefix of the key.
func (c *Controller) sync(ctx context.Context, key string) error {
	if name, ok := strings.CutPrefix(key, volumeKey); ok {
		pv, err := c.volumes.Get(name)
		if apierrors.IsNotFound(err) {
			return c.deleteRemoverPod(ctx, name)
		}
		if err != nil {
			return err
		}
		return c.syncVolume(ctx, pv)
	}
	namespace, name := control.SplitKey(strings.TrimPrefix(key, claimKey))
	pvc, err := c.claims.PersistentVolumeClaims(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if pvc.Spec.VolumeName != "" {
		return c.expand(ctx, pvc)
	}
	return c.provision(ctx, pvc)
}

// errNode is the error if a claim's node cannot have the volume, but another node may.
var errNode = errors.New("node has no local volumes")

// provision creates the volume of a claim once its node is selected. It does nothing for claims of other provisioners,
// for claims that already have a volume, and while the scheduler has not selected a node. If the volume cannot be
// created, it emits an event; if only the selected node is unsuitable, it requests another node.
func (c *Controller) provision(ctx context.Context, pvc *corev1.PersistentVolumeClaim) error {
	if pvc.DeletionTimestamp != nil || pvc.Status.Phase == corev1.ClaimLost {
		return nil
	}
	class, err := c.classes.Get(volumehelpers.GetPersistentVolumeClaimClass(pvc))
	if apierrors.IsNotFound(err) || err == nil && class.Provisioner != localpath.Provisioner {
		return nil
	}
	if err != nil {
		return err
	}
	name := "pvc-" + string(pvc.UID)
	if _, err := c.volumes.Get(name); err == nil {
		return nil
	}
	node, err := c.selectNode(pvc, class)
	if node == nil && err == nil {
		return nil
	}
	var pv *corev1.PersistentVolume
	if err == nil {
		c.env.Events.Eventf(pvc, corev1.EventTypeNormal, "Provisioning", "External provisioner is provisioning volume for claim %q", pvc.Namespace+"/"+pvc.Name)
		pv, err = volumeOf(name, pvc, class, node)
	}
	if err == nil {
		_, err = c.env.Kube.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		if err == nil {
			c.env.Events.Eventf(pvc, corev1.EventTypeNormal, "ProvisioningSucceeded", "Successfully provisioned volume %s", name)
			return nil
		}
		c.env.Events.Eventf(pvc, corev1.EventTypeWarning, "ProvisioningFailed", "failed to provision volume with StorageClass %q: %v", class.Name, err)
		return fmt.Errorf("provisioning volume for claim %s/%s: %w", pvc.Namespace, pvc.Name, err)
	}
	c.env.Events.Eventf(pvc, corev1.EventTypeWarning, "ProvisioningFailed", "failed to provision volume with StorageClass %q: %v", class.Name, err)
	if errors.Is(err, errNode) && pvc.Annotations[volumehelpers.AnnSelectedNode] != "" {
		return c.reschedule(ctx, pvc)
	}
	return nil
}

// reschedule removes the selected node from a claim, so that the scheduler selects another one.
func (c *Controller) reschedule(ctx context.Context, pvc *corev1.PersistentVolumeClaim) error {
	next := pvc.DeepCopy()
	delete(next.Annotations, volumehelpers.AnnSelectedNode)
	if _, err := c.env.Kube.CoreV1().PersistentVolumeClaims(pvc.Namespace).Update(ctx, next, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("clearing selected node of claim %s/%s: %w", pvc.Namespace, pvc.Name, err)
	}
	return nil
}

// selectNode returns the node of a claim's volume: the one that the scheduler selected, or, for immediate binding, the
// schedulable node with the fewest volumes. It returns nil while the scheduler has not selected a node, and an error
// that wraps errNode if the node is unsuitable or none is suitable.
func (c *Controller) selectNode(pvc *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (*corev1.Node, error) {
	if name := pvc.Annotations[volumehelpers.AnnSelectedNode]; name != "" {
		node, err := c.nodes.Get(name)
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("%w: node %q does not exist", errNode, name)
		}
		if err != nil {
			return nil, err
		}
		if node.Annotations[localpath.Annotation] == "" || node.Labels[corev1.LabelHostname] == "" {
			return nil, fmt.Errorf("%w: %s", errNode, name)
		}
		return node, nil
	}
	if class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer {
		return nil, nil
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	volumes, err := c.volumes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	count := map[string]int{}
	for _, pv := range volumes {
		if localpath.IsManaged(pv) {
			count[localpath.Hostname(pv)]++
		}
	}
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n *corev1.Node) bool {
		return n.Annotations[localpath.Annotation] == "" || n.Labels[corev1.LabelHostname] == "" || n.Spec.Unschedulable || !allowed(class, n)
	})
	if len(nodes) == 0 {
		return nil, fmt.Errorf("%w: no suitable node", errNode)
	}
	return slices.MinFunc(nodes, func(a, b *corev1.Node) int {
		if d := count[a.Labels[corev1.LabelHostname]] - count[b.Labels[corev1.LabelHostname]]; d != 0 {
			return d
		}
		return strings.Compare(a.Name, b.Name)
	}), nil
}

// allowed reports whether the allowed topologies of class include n. Without allowed topologies, all nodes are
// included.
func allowed(class *storagev1.StorageClass, n *corev1.Node) bool {
	if len(class.AllowedTopologies) == 0 {
		return true
	}
	return slices.ContainsFunc(class.AllowedTopologies, func(t corev1.TopologySelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchLabelExpressions, func(e corev1.TopologySelectorLabelRequirement) bool {
			return !slices.Contains(e.Values, n.Labels[e.Key])
		})
	})
}

// volumeOf returns the volume with the name for a claim, in a directory on node. It returns an error if the claim or
// the class requests something that a directory cannot provide.
func volumeOf(name string, pvc *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, node *corev1.Node) (*corev1.PersistentVolume, error) {
	switch {
	case pvc.Spec.VolumeMode != nil && *pvc.Spec.VolumeMode != corev1.PersistentVolumeFilesystem:
		return nil, errors.New("local volumes are directories: block volumes are not supported")
	case pvc.Spec.Selector != nil:
		return nil, errors.New("claim.Spec.Selector is not supported")
	case pvc.Spec.DataSource != nil || pvc.Spec.DataSourceRef != nil:
		return nil, errors.New("claim.Spec.DataSource is not supported")
	case len(class.Parameters) > 0:
		return nil, errors.New("storage class parameters are not supported")
	}
	policy := corev1.PersistentVolumeReclaimDelete
	if class.ReclaimPolicy != nil {
		policy = *class.ReclaimPolicy
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Annotations: map[string]string{volumehelpers.AnnDynamicallyProvisioned: localpath.Provisioner},
			Finalizers:  []string{localpath.Finalizer},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: pvc.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes:                   pvc.Spec.AccessModes,
			VolumeMode:                    pvc.Spec.VolumeMode,
			PersistentVolumeReclaimPolicy: policy,
			StorageClassName:              class.Name,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				Local: &corev1.LocalVolumeSource{Path: node.Annotations[localpath.Annotation] + "/" + name},
			},
			ClaimRef: &corev1.ObjectReference{
				Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: pvc.Namespace, Name: pvc.Name, UID: pvc.UID, ResourceVersion: pvc.ResourceVersion,
			},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node.Labels[corev1.LabelHostname]},
				}},
			}}}},
		},
	}, nil
}

// expand sets the capacity of a claim and its volume to the requested size, without changing anything on the node: a
// directory has no size limit.
func (c *Controller) expand(ctx context.Context, pvc *corev1.PersistentVolumeClaim) error {
	want, has := pvc.Spec.Resources.Requests[corev1.ResourceStorage], pvc.Status.Capacity[corev1.ResourceStorage]
	if pvc.Status.Phase != corev1.ClaimBound || want.Cmp(has) <= 0 {
		return nil
	}
	pv, err := c.volumes.Get(pvc.Spec.VolumeName)
	if apierrors.IsNotFound(err) || err == nil && !localpath.IsManaged(pv) {
		return nil
	}
	if err != nil {
		return err
	}
	if size := pv.Spec.Capacity[corev1.ResourceStorage]; size.Cmp(want) < 0 {
		next := pv.DeepCopy()
		next.Spec.Capacity[corev1.ResourceStorage] = want
		if _, err := c.env.Kube.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("expanding volume %s: %w", pv.Name, err)
		}
	}
	next := pvc.DeepCopy()
	if next.Status.Capacity == nil {
		next.Status.Capacity = corev1.ResourceList{}
	}
	next.Status.Capacity[corev1.ResourceStorage] = want
	delete(next.Status.AllocatedResources, corev1.ResourceStorage)
	delete(next.Status.AllocatedResourceStatuses, corev1.ResourceStorage)
	next.Status.Conditions = slices.DeleteFunc(next.Status.Conditions, func(p corev1.PersistentVolumeClaimCondition) bool {
		return p.Type == corev1.PersistentVolumeClaimResizing || p.Type == corev1.PersistentVolumeClaimFileSystemResizePending
	})
	if _, err := c.env.Kube.CoreV1().PersistentVolumeClaims(pvc.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("expanding claim %s/%s: %w", pvc.Namespace, pvc.Name, err)
	}
	c.env.Events.Event(pvc, corev1.EventTypeNormal, "VolumeResizeSuccessful", "Resize volume succeeded")
	return nil
}

// uid returns the precondition that an object has the UID id.
func uid(id types.UID) *metav1.Preconditions { return &metav1.Preconditions{UID: &id} }
