package plugins

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	volumehelpers "k8s.io/component-helpers/storage/volume"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
	"hyperkube/internal/podrefs"
)

// VolumeBinding keeps pods to the nodes where their volumes are, and chooses
// volumes with the node for claims that wait for it.
// https://kubernetes.io/docs/concepts/storage/storage-classes/#volume-binding-mode
type VolumeBinding struct {
	// BindTimeout is how long a pod waits for its volumes on the node chosen.
	BindTimeout time.Duration
	// Shape tells the score for the part of a node's storage that the pod would
	// use; nil: the less, the better.
	Shape []Point
}

// Name of the plugin.
func (VolumeBinding) Name() string { return "VolumeBinding" }

// Wakes as framework.Waker.
func (VolumeBinding) Wakes() framework.Event {
	return framework.NodeAdded | framework.NodeLabelsChanged | framework.ClaimChanged | framework.VolumeChanged |
		framework.ClassChanged | framework.CSINodeChanged | framework.CSIDriverChanged | framework.CapacityChanged
}

// claims are those of one pod.
type claims struct {
	bound, delayed []*corev1.PersistentVolumeClaim
	// refused says why no node will do for now.
	refused string
}

func sortClaims(c *framework.Cycle) claims {
	pod := c.Pod.Object
	var out claims
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		name := podrefs.ClaimName(pod, v)
		if name == "" {
			continue
		}
		pvc := c.Volumes.Claim(pod.Namespace, name)
		switch {
		case pvc == nil && v.Ephemeral != nil:
			return claims{refused: fmt.Sprintf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name)}
		case pvc == nil:
			return claims{refused: fmt.Sprintf("persistentvolumeclaim %q not found", name)}
		case pvc.Status.Phase == corev1.ClaimLost:
			return claims{refused: fmt.Sprintf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", name, pvc.Spec.VolumeName)}
		case pvc.DeletionTimestamp != nil:
			return claims{refused: fmt.Sprintf("persistentvolumeclaim %q is being deleted", name)}
		case v.Ephemeral != nil && !metav1.IsControlledBy(pvc, pod):
			return claims{refused: fmt.Sprintf("PVC %s/%s was not created for pod %s/%s (pod is not owner)", pvc.Namespace, name, pod.Namespace, pod.Name)}
		case isBound(pvc):
			out.bound = append(out.bound, pvc)
		case pvc.Spec.VolumeName == "" && isDelayed(c.Volumes, pvc):
			out.delayed = append(out.delayed, pvc)
		default:
			return claims{refused: "pod has unbound immediate PersistentVolumeClaims"}
		}
	}
	slices.SortStableFunc(out.delayed, func(a, b *corev1.PersistentVolumeClaim) int {
		x, y := a.Spec.Resources.Requests[corev1.ResourceStorage], b.Spec.Resources.Requests[corev1.ResourceStorage]
		return x.Cmp(y)
	})
	return out
}

func isBound(pvc *corev1.PersistentVolumeClaim) bool {
	return pvc.Spec.VolumeName != "" && metav1.HasAnnotation(pvc.ObjectMeta, volumehelpers.AnnBindCompleted)
}

func isDelayed(v framework.Volumes, pvc *corev1.PersistentVolumeClaim) bool {
	class := v.Class(volumehelpers.GetPersistentVolumeClaimClass(pvc))
	return class != nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// Filter as framework.Filter.
func (VolumeBinding) Filter(c *framework.Cycle) (*framework.Check, error) {
	if c.Volumes == nil || !podrefs.HasClaims(c.Pod.Object) {
		return nil, nil
	}
	all := sortClaims(c)
	if all.refused != "" {
		return &framework.Check{Refused: all.refused}, nil
	}
	return &framework.Check{Node: func(n *state.Node) []framework.Reason {
		var reasons []framework.Reason
		for _, pvc := range all.bound {
			pv := c.Volumes.Volume(pvc.Spec.VolumeName)
			if pv == nil {
				return reason("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)", true)
			}
			if volumehelpers.CheckNodeAffinity(pv, n.Object.Labels) != nil {
				reasons = reason("node(s) didn't match PersistentVolume's node affinity", true)
				break
			}
		}
		if _, why := plan(c, all.delayed, n); why != "" {
			reasons = append(reasons, framework.Reason{Text: why, Unresolvable: true})
		}
		return reasons
	}}, nil
}

// The reasons why claims cannot get a volume on a node.
const (
	noVolume = "node(s) didn't find available persistent volumes to bind"
	noSpace  = "node(s) did not have enough free storage"
)

// plan finds for each claim a volume that a node can reach, or a class that
// makes one there; else it says why not.
func plan(c *framework.Cycle, delayed []*corev1.PersistentVolumeClaim, n *state.Node) (*framework.Reservation, string) {
	if len(delayed) == 0 {
		return nil, ""
	}
	r := &framework.Reservation{}
	taken := map[string]*corev1.PersistentVolume{}
	for _, pvc := range delayed {
		if chosen := pvc.Annotations[volumehelpers.AnnSelectedNode]; chosen != "" {
			// It is being made, there and nowhere else.
			if chosen != n.Name {
				return nil, noVolume
			}
			r.Provision = append(r.Provision, framework.Provisioned{Claim: pvc, Was: pvc})
			continue
		}
		class := volumehelpers.GetPersistentVolumeClaimClass(pvc)
		pv, err := volumehelpers.FindMatchingVolume(pvc, c.Volumes.VolumesOf(class), n.Object, taken, true, true)
		if err != nil {
			return nil, noVolume
		}
		if pv != nil {
			taken[pv.Name] = pv
			r.Bind = append(r.Bind, framework.Bound{Volume: pv, Was: pv, Claim: pvc})
			continue
		}
		if _, why := mayProvision(c.Volumes, pvc, n); why != "" {
			return nil, why
		}
		r.Provision = append(r.Provision, framework.Provisioned{Claim: pvc, Was: pvc})
	}
	return r, ""
}

// mayProvision says why no volume can be made for a claim on a node, or returns
// the storage that it can be made of, nil if nobody tells.
func mayProvision(v framework.Volumes, pvc *corev1.PersistentVolumeClaim, n *state.Node) (*storagev1.CSIStorageCapacity, string) {
	class := v.Class(volumehelpers.GetPersistentVolumeClaimClass(pvc))
	if class == nil || class.Provisioner == "" || class.Provisioner == volumehelpers.NotSupportedProvisioner {
		return nil, noVolume
	}
	if len(class.AllowedTopologies) > 0 && !slices.ContainsFunc(class.AllowedTopologies, func(t corev1.TopologySelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchLabelExpressions, func(e corev1.TopologySelectorLabelRequirement) bool {
			return !slices.Contains(e.Values, n.Object.Labels[e.Key])
		})
	}) {
		return nil, noVolume
	}
	size, ok := pvc.Spec.Resources.Requests[corev1.ResourceStorage]
	driver := v.Driver(class.Provisioner)
	if !ok || driver == nil || driver.Spec.StorageCapacity == nil || !*driver.Spec.StorageCapacity {
		return nil, ""
	}
	for _, k := range v.Capacities() {
		limit := k.Capacity
		if k.MaximumVolumeSize != nil {
			limit = k.MaximumVolumeSize
		}
		if k.StorageClassName != class.Name || limit == nil || limit.Cmp(size) < 0 || k.NodeTopology == nil {
			continue
		}
		if s, err := metav1.LabelSelectorAsSelector(k.NodeTopology); err == nil && s.Matches(labels.Set(n.Object.Labels)) {
			return k, ""
		}
	}
	return nil, noSpace
}

// share is how much of what storage has room for a pod would use, in bytes.
type share struct{ used, room int64 }

// Score as framework.Score: of nodes where volumes are chosen for the pod's
// claims, or made, those come first whose storage has the most left, unless the
// shape says otherwise. Each class counts alike.
// https://kep.k8s.io/4049
func (p VolumeBinding) Score(c *framework.Cycle, nodes []*state.Node, out []int64) bool {
	if c.Volumes == nil || !podrefs.HasClaims(c.Pod.Object) {
		return false
	}
	all := sortClaims(c)
	if all.refused != "" || len(all.delayed) == 0 {
		return false
	}
	for i, n := range nodes {
		out[i] = 0
		if r, why := plan(c, all.delayed, n); why == "" {
			out[i] = p.scoreOf(sharesOf(c.Volumes, r, n))
		}
	}
	return true
}

// sharesOf are those of what is chosen on a node, or else made there, by class.
func sharesOf(v framework.Volumes, r *framework.Reservation, n *state.Node) map[string]share {
	out := map[string]share{}
	for _, b := range r.Bind {
		used, room := b.Claim.Spec.Resources.Requests[corev1.ResourceStorage], b.Volume.Spec.Capacity[corev1.ResourceStorage]
		s := out[b.Volume.Spec.StorageClassName]
		out[b.Volume.Spec.StorageClassName] = share{s.used + used.Value(), s.room + room.Value()}
	}
	if len(r.Bind) > 0 {
		return out
	}
	for _, made := range r.Provision {
		capacity, _ := mayProvision(v, made.Claim, n)
		if capacity == nil {
			continue
		}
		used := made.Claim.Spec.Resources.Requests[corev1.ResourceStorage]
		s := share{used: out[capacity.StorageClassName].used + used.Value()}
		if capacity.Capacity != nil {
			s.room = capacity.Capacity.Value() // all are made of the same
		}
		out[capacity.StorageClassName] = s
	}
	return out
}

var emptiest = []Point{{Utilization: 0, Score: framework.MaxScore}, {Utilization: 100, Score: 0}}

func (p VolumeBinding) scoreOf(classes map[string]share) int64 {
	if len(classes) == 0 {
		return 0
	}
	shape := p.Shape
	if shape == nil {
		shape = emptiest
	}
	var sum int64
	for _, s := range classes {
		if s.room == 0 || s.used > s.room {
			sum += onShape(shape, 100)
			continue
		}
		sum += onShape(shape, s.used*100/s.room)
	}
	return int64(math.Round(float64(sum) / float64(len(classes))))
}

// Reserve as framework.Reserver.
func (p VolumeBinding) Reserve(c *framework.Cycle, n *state.Node) (*framework.Reservation, error) {
	if c.Volumes == nil || !podrefs.HasClaims(c.Pod.Object) {
		return nil, nil
	}
	all := sortClaims(c)
	if all.refused != "" {
		return nil, errors.New(all.refused)
	}
	r, why := plan(c, all.delayed, n)
	if why != "" {
		return nil, errors.New(why)
	}
	if r == nil {
		return nil, nil
	}
	for i := range r.Bind {
		b := &r.Bind[i]
		bound, _, err := volumehelpers.GetBindVolumeToClaim(b.Was, b.Claim)
		if err != nil {
			return nil, fmt.Errorf("binding volume %s: %w", b.Was.Name, err)
		}
		b.Volume = bound
	}
	for i := range r.Provision {
		claim := &r.Provision[i]
		claim.Claim = claim.Was.DeepCopy()
		metav1.SetMetaDataAnnotation(&claim.Claim.ObjectMeta, volumehelpers.AnnSelectedNode, n.Name)
	}
	r.Timeout = p.BindTimeout
	return r, nil
}
