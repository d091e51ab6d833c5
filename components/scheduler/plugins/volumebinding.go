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
	"hyperkube/internal/api/podrefs"
)

// VolumeBinding excludes nodes that cannot access the pod's volumes, and selects volumes for claims
// with delayed binding.
// https://kubernetes.io/docs/concepts/storage/storage-classes/#volume-binding-mode
type VolumeBinding struct {
	// BindTimeout is how long binding waits for the pod's volumes.
	BindTimeout time.Duration
	// Shape maps the utilization of a node's storage with the pod to a score; if nil, a lower
	// utilization has a higher score.
	Shape []Point
}

// Name returns the name of the plugin in configuration files.
func (VolumeBinding) Name() string { return "VolumeBinding" }

// Wakes implements framework.Waker. After one of the returned events in the cluster, the scheduler tries a pod again
// that this plugin has rejected.
func (VolumeBinding) Wakes() framework.Event {
	return framework.NodeAdded | framework.NodeLabelsChanged | framework.ClaimChanged | framework.VolumeChanged |
		framework.ClassChanged | framework.CSINodeChanged | framework.CSIDriverChanged | framework.CapacityChanged
}

// claims are the PersistentVolumeClaims of one pod: those that are bound, and those whose binding is delayed until the
// pod is scheduled, the smallest first.
type claims struct {
	bound, delayed []*corev1.PersistentVolumeClaim
	// refused is the reason why no node fits now.
	refused string
}

// classifyClaims returns the claims of the pod that is being scheduled. If one of them cannot be used now, it returns
// only the reason, in the field refused: then the pod fits no node.
func classifyClaims(c *framework.Cycle) claims {
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

// isBound reports whether the binding of a claim to a volume is complete.
func isBound(pvc *corev1.PersistentVolumeClaim) bool {
	return pvc.Spec.VolumeName != "" && metav1.HasAnnotation(pvc.ObjectMeta, volumehelpers.AnnBindCompleted)
}

// isDelayed reports whether the storage class of a claim has the binding mode WaitForFirstConsumer.
func isDelayed(v framework.Volumes, pvc *corev1.PersistentVolumeClaim) bool {
	class := v.Class(volumehelpers.GetPersistentVolumeClaimClass(pvc))
	return class != nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// Filter rejects nodes that cannot access a volume of a bound claim, or on which a claim with delayed binding can get
// no volume. If a claim cannot be used now, it rejects all nodes. It rejects no node and returns nil for a pod without
// claims.
func (VolumeBinding) Filter(c *framework.Cycle) (*framework.Check, error) {
	if c.Volumes == nil || !podrefs.HasClaims(c.Pod.Object) {
		return nil, nil
	}
	all := classifyClaims(c)
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

// The reasons, in upstream's words, why the claims of a pod with delayed binding cannot get volumes on a node.
const (
	noVolume = "node(s) didn't find available persistent volumes to bind"
	noSpace  = "node(s) did not have enough free storage"
)

// plan chooses a volume for each delayed claim on a node: an existing volume that the node can access, or one that
// can be provisioned for the node. A claim whose volume is already being provisioned for a node fits only on that
// node. If there is no volume for a claim, plan returns the reason. It changes nothing; Reserve turns the result into
// objects to write.
func plan(c *framework.Cycle, delayed []*corev1.PersistentVolumeClaim, n *state.Node) (*framework.Reservation, string) {
	if len(delayed) == 0 {
		return nil, ""
	}
	r := &framework.Reservation{}
	taken := map[string]*corev1.PersistentVolume{}
	for _, pvc := range delayed {
		if chosen := pvc.Annotations[volumehelpers.AnnSelectedNode]; chosen != "" {
			// A volume is being provisioned for the selected node.
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

// mayProvision checks whether the provisioner of a claim's storage class can create a volume for a node. If not, it
// returns the reason. Otherwise it returns the storage capacity from which the volume would be provisioned, or nil if
// the driver does not report its capacity.
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

// capacityUse is how many of the available bytes (room) the claims of a pod would use.
type capacityUse struct{ used, room int64 }

// Score prefers nodes on which binding or provisioning volumes for the pod leads to the lowest storage utilization,
// unless Shape specifies otherwise. All storage classes have the same weight. It gives no scores and returns false if
// no claim of the pod is to be bound. https://kep.k8s.io/4049
func (p VolumeBinding) Score(c *framework.Cycle, nodes []*state.Node, out []int64) bool {
	if c.Volumes == nil || !podrefs.HasClaims(c.Pod.Object) {
		return false
	}
	all := classifyClaims(c)
	if all.refused != "" || len(all.delayed) == 0 {
		return false
	}
	for i, n := range nodes {
		out[i] = 0
		if r, why := plan(c, all.delayed, n); why == "" {
			out[i] = p.scoreOf(capacityUseOf(c.Volumes, r, n))
		}
	}
	return true
}

// capacityUseOf returns the utilization, by storage class, of the volumes that a plan binds, or if it binds none, of
// the capacities from which it provisions volumes.
func capacityUseOf(v framework.Volumes, r *framework.Reservation, n *state.Node) map[string]capacityUse {
	out := map[string]capacityUse{}
	for _, b := range r.Bind {
		used, room := b.Claim.Spec.Resources.Requests[corev1.ResourceStorage], b.Volume.Spec.Capacity[corev1.ResourceStorage]
		s := out[b.Volume.Spec.StorageClassName]
		out[b.Volume.Spec.StorageClassName] = capacityUse{s.used + used.Value(), s.room + room.Value()}
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
		s := capacityUse{used: out[capacity.StorageClassName].used + used.Value()}
		if capacity.Capacity != nil {
			s.room = capacity.Capacity.Value() // all of the class are provisioned from the same capacity
		}
		out[capacity.StorageClassName] = s
	}
	return out
}

// defaultShape is the scoring function if VolumeBinding.Shape is not set: a lower utilization has a higher score.
var defaultShape = []Point{{Utilization: 0, Score: framework.MaxScore}, {Utilization: 100, Score: 0}}

// scoreOf returns the average score of the storage classes of a plan, or 0 if there are none.
func (p VolumeBinding) scoreOf(classes map[string]capacityUse) int64 {
	if len(classes) == 0 {
		return 0
	}
	shape := p.Shape
	if shape == nil {
		shape = defaultShape
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

// Reserve returns the volumes and claims to write before the pod is bound to the node n: existing volumes with a
// reference to their claim, and claims with the node for which a volume must be provisioned. It returns nil if there
// are none.
func (p VolumeBinding) Reserve(c *framework.Cycle, n *state.Node) (*framework.Reservation, error) {
	if c.Volumes == nil || !podrefs.HasClaims(c.Pod.Object) {
		return nil, nil
	}
	all := classifyClaims(c)
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
