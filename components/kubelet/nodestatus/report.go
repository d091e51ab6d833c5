package nodestatus

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// report makes the API's Node say what is so. With force it is sent though
// nothing but the time has changed. It tells whether it was sent.
func (k *Keeper) report(ctx context.Context, force bool) (bool, error) {
	nodes := k.cfg.Kube.CoreV1().Nodes()
	have := k.Node()
	if have == nil {
		if !k.cfg.Register {
			found, err := nodes.Get(ctx, k.cfg.Name, metav1.GetOptions{})
			if err != nil {
				return false, fmt.Errorf("getting the node: %w", err)
			}
			have = found
		} else {
			fresh := k.initial(ctx)
			if k.asked.IsZero() {
				k.asked = time.Now()
			}
			made, err := nodes.Create(ctx, fresh, metav1.CreateOptions{})
			switch {
			case err == nil:
				k.registered = time.Now()
				k.set(made)
				k.tell(&v1.NodeStatus{}, &made.Status)
				return true, nil
			case !apierrors.IsAlreadyExists(err):
				return false, fmt.Errorf("registering the node: %w", err)
			}
			found, err := nodes.Get(ctx, k.cfg.Name, metav1.GetOptions{})
			if err != nil {
				return false, fmt.Errorf("getting the node: %w", err)
			}
			if have, err = k.reconcile(ctx, found, fresh); err != nil {
				return false, err
			}
			if k.cfg.Renewed != nil && k.cfg.Renewed() {
				if have, err = k.zero(ctx, have); err != nil {
					return false, err
				}
			}
		}
		k.set(have)
		force = true
	}
	want := have.DeepCopy()
	k.fill(ctx, want, time.Now())
	relabelled := relabel(want)
	if !force && !relabelled && same(&have.Status, &want.Status) {
		return false, nil
	}
	patch, err := statusPatch(have, want)
	if err != nil {
		return false, err
	}
	got, err := nodes.Patch(ctx, k.cfg.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		// Someone deleted it: it is registered anew.
		k.mu.Lock()
		k.node = nil
		k.mu.Unlock()
	}
	if err != nil {
		return false, fmt.Errorf("reporting the node's status: %w", err)
	}
	k.set(got)
	k.tell(&have.Status, &want.Status)
	return true, nil
}

func (k *Keeper) seen() {
	if k.cfg.Seen != nil {
		k.cfg.Seen()
	}
}

func (k *Keeper) set(node *v1.Node) {
	k.mu.Lock()
	k.node = node
	k.mu.Unlock()
	k.seen()
	// The runtime must know its addresses before pods come.
	if node.Spec.PodCIDR != "" {
		k.Changed()
	}
}

// initial is the Node as it is registered.
func (k *Keeper) initial(ctx context.Context) *v1.Node {
	n := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        k.cfg.Name,
			Labels:      k.labels(),
			Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
		},
		Spec: v1.NodeSpec{ProviderID: k.cfg.ProviderID, Taints: slices.Clone(k.cfg.Taints), Unschedulable: k.cfg.Unschedulable},
	}
	maps.Copy(n.Annotations, k.cfg.Annotations)
	k.fill(ctx, n, time.Now())
	return n
}

func (k *Keeper) labels() map[string]string {
	out := maps.Clone(k.cfg.Labels)
	if out == nil {
		out = map[string]string{}
	}
	out[v1.LabelHostname] = k.cfg.Name
	out[v1.LabelOSStable], out[v1.LabelArchStable] = osName, archName
	out[betaOS], out[betaArch] = osName, archName
	return out
}

// wellKnown are the labels that a Node which is there already takes from its
// kubelet. Others are the kubelet's when it registers the Node, and later whoever
// changes them.
var wellKnown = []string{
	v1.LabelHostname, v1.LabelTopologyZone, v1.LabelTopologyRegion, v1.LabelFailureDomainBetaZone, v1.LabelFailureDomainBetaRegion,
	v1.LabelInstanceTypeStable, v1.LabelInstanceType, v1.LabelOSStable, v1.LabelArchStable, betaOS, betaArch,
}

// The labels of the system and the processor before they were stable.
const (
	betaOS   = "beta.kubernetes.io/os"
	betaArch = "beta.kubernetes.io/arch"
)

// reconcile brings the labels of a Node that was there already up to date.
func (k *Keeper) reconcile(ctx context.Context, found, fresh *v1.Node) (*v1.Node, error) {
	want := found.DeepCopy()
	if want.Labels == nil {
		want.Labels = map[string]string{}
	}
	if want.Annotations == nil {
		want.Annotations = map[string]string{}
	}
	for _, name := range wellKnown {
		if value, ok := fresh.Labels[name]; ok {
			want.Labels[name] = value
		}
	}
	maps.Copy(want.Annotations, fresh.Annotations)
	if want.Spec.ProviderID == "" {
		want.Spec.ProviderID = fresh.Spec.ProviderID
	}
	if apiequality.Semantic.DeepEqual(found, want) {
		return found, nil
	}
	old, err := json.Marshal(found)
	if err != nil {
		return nil, fmt.Errorf("encoding the node: %w", err)
	}
	now, err := json.Marshal(want)
	if err != nil {
		return nil, fmt.Errorf("encoding the node: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(old, now, v1.Node{})
	if err != nil {
		return nil, fmt.Errorf("making the node's patch: %w", err)
	}
	got, err := k.cfg.Kube.CoreV1().Nodes().Patch(ctx, k.cfg.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return nil, fmt.Errorf("updating the node's labels: %w", err)
	}
	return got, nil
}

// zero has a Node tell that there is nothing of any extended resource until somebody
// says that there is.
func (k *Keeper) zero(ctx context.Context, found *v1.Node) (*v1.Node, error) {
	want := found.DeepCopy()
	for _, list := range []v1.ResourceList{want.Status.Capacity, want.Status.Allocatable} {
		for name, q := range list {
			if extended(name) && !q.IsZero() {
				list[name] = *resource.NewQuantity(0, resource.DecimalSI)
			}
		}
	}
	if apiequality.Semantic.DeepEqual(found, want) {
		return found, nil
	}
	patch, err := statusPatch(found, want)
	if err != nil {
		return nil, err
	}
	got, err := k.cfg.Kube.CoreV1().Nodes().Patch(ctx, k.cfg.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return nil, fmt.Errorf("taking back the node's extended resources: %w", err)
	}
	return got, nil
}

// extended tells whether a resource is one that the kubelet knows nothing of itself.
func extended(name v1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.HasPrefix(string(name), v1.ResourceDefaultNamespacePrefix)
}

// same compares statuses without their heartbeats.
func same(a, b *v1.NodeStatus) bool {
	strip := func(s *v1.NodeStatus) *v1.NodeStatus {
		out := s.DeepCopy()
		for i := range out.Conditions {
			out.Conditions[i].LastHeartbeatTime = metav1.Time{}
		}
		slices.SortStableFunc(out.Conditions, func(x, y v1.NodeCondition) int { return cmp.Compare(x.Type, y.Type) })
		return out
	}
	return apiequality.Semantic.DeepEqual(strip(a), strip(b))
}

// relabel gives a Node that somebody has labelled as one of another system or
// architecture the labels that pods are placed by back. It tells whether it had
// to.
func relabel(node *v1.Node) bool {
	changed := false
	for name, value := range map[string]string{v1.LabelOSStable: osName, v1.LabelArchStable: archName} {
		if node.Labels[name] == value {
			continue
		}
		if node.Labels == nil {
			node.Labels = map[string]string{}
		}
		node.Labels[name] = value
		changed = true
	}
	return changed
}

// statusPatch is what makes have's labels and status those of want.
func statusPatch(have, want *v1.Node) ([]byte, error) {
	old, err := json.Marshal(v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: have.Labels}, Status: have.Status})
	if err != nil {
		return nil, fmt.Errorf("encoding the node's status: %w", err)
	}
	// Addresses are a list by type in the patch strategy, but there may be two
	// of one type: they are replaced as a whole.
	now, err := json.Marshal(v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: want.Labels}, Status: want.Status})
	if err != nil {
		return nil, fmt.Errorf("encoding the node's status: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(old, now, v1.Node{})
	if err != nil {
		return nil, fmt.Errorf("making the patch of the node's status: %w", err)
	}
	if apiequality.Semantic.DeepEqual(have.Status.Addresses, want.Status.Addresses) {
		return patch, nil
	}
	var doc map[string]any
	if err := json.Unmarshal(patch, &doc); err != nil {
		return nil, fmt.Errorf("making the patch of the node's status: %w", err)
	}
	if doc["status"] == nil {
		doc["status"] = map[string]any{}
	}
	status := doc["status"].(map[string]any)
	list := []any{}
	for _, a := range want.Status.Addresses {
		list = append(list, a)
	}
	status["addresses"] = append(list, map[string]string{"$patch": "replace"})
	delete(status, "$setElementOrder/addresses")
	return json.Marshal(doc)
}
