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
	cloudproviderapi "k8s.io/cloud-provider/api"

	"hyperkube/internal/base/cloudprovider"
)

// report registers the Node if it is not known, or gets it if registration is disabled. Then it updates the
// status of the Node in the API if it has changed. With force it also sends an unchanged status. It reports
// whether a status was sent. After an error the caller retries.
func (k *Manager) report(ctx context.Context, force bool) (bool, error) {
	nodes := k.cfg.Kube.CoreV1().Nodes()
	have := k.Node()
	if have == nil {
		if !k.cfg.Registration.Enabled {
			found, err := nodes.Get(ctx, k.cfg.Name, metav1.GetOptions{})
			if err != nil {
				return false, fmt.Errorf("getting the node: %w", err)
			}
			have = found
		} else {
			fresh := k.initial(ctx)
			if k.registrationStarted.IsZero() {
				k.registrationStarted = time.Now()
			}
			made, err := nodes.Create(ctx, fresh, metav1.CreateOptions{})
			switch {
			case err == nil:
				k.registered = time.Now()
				k.set(made)
				k.emitEvents(&v1.NodeStatus{}, &made.Status)
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
			if k.cfg.Registration.IsReinstalled != nil && k.cfg.Registration.IsReinstalled() {
				if have, err = k.resetExtendedResources(ctx, have); err != nil {
					return false, err
				}
			}
		}
		k.set(have)
		force = true
	}
	want := have.DeepCopy()
	k.setStatus(ctx, want, time.Now())
	relabelled := relabel(want)
	if !force && !relabelled && equalIgnoringHeartbeats(&have.Status, &want.Status) {
		return false, nil
	}
	patch, err := statusPatch(have, want)
	if err != nil {
		return false, err
	}
	got, err := nodes.Patch(ctx, k.cfg.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		// The Node was deleted. Register it again.
		k.object.set(nil)
	}
	if err != nil {
		return false, fmt.Errorf("updating node status: %w", err)
	}
	k.set(got)
	k.emitEvents(&have.Status, &want.Status)
	return true, nil
}

// notifyNodeChanged calls Config.NodeChanged, unless it is nil, after the Node in the API has changed.
func (k *Manager) notifyNodeChanged() {
	if k.cfg.NodeChanged != nil {
		k.cfg.NodeChanged()
	}
}

// set stores the Node as received from the API. If it has a pod CIDR, an update is requested, so that the
// runtime gets it before pods start.
func (k *Manager) set(node *v1.Node) {
	k.object.set(node)
	k.notifyNodeChanged()
	// The runtime must know the pod CIDRs before pods start.
	if node.Spec.PodCIDR != "" {
		k.Changed()
	}
}

// initial returns the Node with which the node is registered.
func (k *Manager) initial(ctx context.Context) *v1.Node {
	n := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        k.cfg.Name,
			Labels:      k.labels(),
			Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
		},
		Spec: v1.NodeSpec{ProviderID: k.cfg.Registration.ProviderID, Taints: slices.Clone(k.cfg.Registration.Taints), Unschedulable: k.cfg.Registration.Unschedulable},
	}
	maps.Copy(n.Annotations, k.cfg.Registration.Annotations)
	if k.cfg.Registration.CloudProvider.IsExternal() {
		n.Spec.Taints = append(n.Spec.Taints, cloudprovider.Taint())
		// The cloud controller manager verifies that the machine has these addresses, and lists them first.
		if ips := k.cfg.Status.IPs(); len(ips) > 0 {
			n.Annotations[cloudproviderapi.AnnotationAlphaProvidedIPAddr] = strings.Join(ips, ",")
		}
	}
	k.setStatus(ctx, n, time.Now())
	return n
}

// labels returns the labels with which the node is registered: the configured ones, the host name, and the
// operating system and architecture.
func (k *Manager) labels() map[string]string {
	out := maps.Clone(k.cfg.Registration.Labels)
	if out == nil {
		out = map[string]string{}
	}
	out[v1.LabelHostname] = k.cfg.Name
	out[v1.LabelOSStable], out[v1.LabelArchStable] = osName, archName
	out[betaOS], out[betaArch] = osName, archName
	return out
}

// wellKnown are the labels that the kubelet also overwrites on an existing Node when it registers. It sets
// other labels only when it creates the Node.
var wellKnown = []string{
	v1.LabelHostname, v1.LabelTopologyZone, v1.LabelTopologyRegion, v1.LabelFailureDomainBetaZone, v1.LabelFailureDomainBetaRegion,
	v1.LabelInstanceTypeStable, v1.LabelInstanceType, v1.LabelOSStable, v1.LabelArchStable, betaOS, betaArch,
}

// betaOS and betaArch are the labels of the operating system and the architecture that early versions of Kubernetes
// used. Old manifests select nodes by them.
const (
	betaOS   = "beta.kubernetes.io/os"
	betaArch = "beta.kubernetes.io/arch"
)

// reconcile updates an existing Node when the kubelet registers: it overwrites the labels in wellKnown and the
// kubelet's annotations, and sets the provider ID if there is none. found is the Node, and fresh the one that
// would be created. It returns the updated Node.
func (k *Manager) reconcile(ctx context.Context, found, fresh *v1.Node) (*v1.Node, error) {
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
	if _, provided := fresh.Annotations[cloudproviderapi.AnnotationAlphaProvidedIPAddr]; !provided {
		delete(want.Annotations, cloudproviderapi.AnnotationAlphaProvidedIPAddr)
	}
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
		return nil, fmt.Errorf("creating node patch: %w", err)
	}
	got, err := k.cfg.Kube.CoreV1().Nodes().Patch(ctx, k.cfg.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return nil, fmt.Errorf("updating node labels: %w", err)
	}
	return got, nil
}

// resetExtendedResources sets the capacity and allocatable amount of all extended resources of the existing
// Node to zero, because the machine was set up again. Device plugins report them again. It returns the
// updated Node.
func (k *Manager) resetExtendedResources(ctx context.Context, found *v1.Node) (*v1.Node, error) {
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
		return nil, fmt.Errorf("resetting the node's extended resources: %w", err)
	}
	return got, nil
}

// extended reports whether a resource is an extended resource: its name has a domain other than
// kubernetes.io.
func extended(name v1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.HasPrefix(string(name), v1.ResourceDefaultNamespacePrefix)
}

// equalIgnoringHeartbeats reports whether two statuses are equal except for the heartbeat times and the order
// of conditions.
func equalIgnoringHeartbeats(a, b *v1.NodeStatus) bool {
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

// relabel restores the operating system and architecture labels of a Node, which users may have changed. It
// reports whether it has changed a label.
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

// statusPatch returns the patch that changes the labels and status of have to those of want.
func statusPatch(have, want *v1.Node) ([]byte, error) {
	old, err := json.Marshal(v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: have.Labels}, Status: have.Status})
	if err != nil {
		return nil, fmt.Errorf("encoding node status: %w", err)
	}
	// The patch merge key of addresses is their type, but there may be two addresses of a type.
	// Therefore the list is replaced.
	now, err := json.Marshal(v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: want.Labels}, Status: want.Status})
	if err != nil {
		return nil, fmt.Errorf("encoding node status: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(old, now, v1.Node{})
	if err != nil {
		return nil, fmt.Errorf("creating node status patch: %w", err)
	}
	if apiequality.Semantic.DeepEqual(have.Status.Addresses, want.Status.Addresses) {
		return patch, nil
	}
	var doc map[string]any
	if err := json.Unmarshal(patch, &doc); err != nil {
		return nil, fmt.Errorf("creating node status patch: %w", err)
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
