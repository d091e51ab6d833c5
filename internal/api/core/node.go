package core

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"

	"hyperkube/internal/api"
	"hyperkube/internal/api/core/pod"
	"hyperkube/internal/api/validate"
)

func node() api.Kind[*corev1.Node] {
	info := corev1.NodeSystemInfo{}.SwaggerDoc()
	addresses := corev1.NodeStatus{}.SwaggerDoc()["addresses"]
	return api.Kind[*corev1.Node]{
		Names: api.Names{
			Kind:       "Node",
			Plural:     "nodes",
			ShortNames: []string{"no"},
		},
		Version:     "v1",
		Scope:       api.Cluster,
		StoragePath: "minions",
		New:         func() *corev1.Node { return &corev1.Node{} },
		NewList:     func() runtime.Object { return &corev1.NodeList{} },
		Default:     defaultNode,
		PrepareCreate: func(_ context.Context, n *corev1.Node) {
			// Dynamic kubelet configuration was removed in v1.24.
			n.Spec.ConfigSource, n.Status.Config = nil, nil
			// The feature gate InPlacePodVerticalScalingSchedulerPreemption is disabled.
			n.Spec.PodPreemptionPolicy = nil
		},
		Validate: func(_ context.Context, n *corev1.Node) field.ErrorList { return validateNode(n) },
		Warnings: nodeWarnings,
		Update: api.KindUpdate[*corev1.Node]{
			AsNew: true, NewFirst: true,
			Prepare: func(_ context.Context, n, old *corev1.Node) {
				old.Status.DeepCopyInto(&n.Status)
				if old.Spec.ConfigSource == nil {
					n.Spec.ConfigSource = nil
				}
				if old.Spec.PodPreemptionPolicy == nil {
					n.Spec.PodPreemptionPolicy = nil
				}
			},
			Validate: func(ctx context.Context, n, old *corev1.Node) field.ErrorList {
				// Duplicate errors are reported once, in the order of their first occurrence.
				return append(validateNode(n), validateNodeUpdate(ctx, n, old)...)
			},
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*corev1.Node]{
			"status": {
				Prepare: func(_ context.Context, n, old *corev1.Node) {
					old.Spec.DeepCopyInto(&n.Spec)
					if old.Status.Config == nil {
						n.Status.Config = nil
					}
				},
				Validate:    validateNodeUpdate,
				ResetFields: [][]string{{"spec"}},
			},
		},
		Fields: func(n *corev1.Node) fields.Set {
			return fields.Set{"spec.unschedulable": strconv.FormatBool(n.Spec.Unschedulable)}
		},
		FieldNames: []string{"spec.unschedulable"},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Status", "string", "The status of the node"),
			api.Column("Roles", "string", "The roles of the node"),
			api.AgeColumn,
			api.Column("Version", "string", info["kubeletVersion"]),
			api.WideColumn("Internal-IP", "string", addresses),
			api.WideColumn("External-IP", "string", addresses),
			api.WideColumn("OS-Image", "string", info["osImage"]),
			api.WideColumn("Kernel-Version", "string", info["kernelVersion"]),
			api.WideColumn("Container-Runtime", "string", info["containerRuntimeVersion"]),
		},
		Row: nodeRow,
	}
}

// defaultNode sets podCIDR and podCIDRs of a Node from each other, and the allocatable resources to the capacity if
// they are missing. It also rounds the quantities.
func defaultNode(n *corev1.Node) {
	// Old clients only know podCIDR, so it takes precedence over podCIDRs.
	switch s := &n.Spec; {
	case s.PodCIDR != "" && (len(s.PodCIDRs) == 0 || s.PodCIDRs[0] != s.PodCIDR):
		s.PodCIDRs = []string{s.PodCIDR}
	case s.PodCIDR == "" && len(s.PodCIDRs) > 0:
		s.PodCIDR = s.PodCIDRs[0]
	}
	if len(n.Status.Allocatable) == 0 && n.Status.Capacity != nil {
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	}
	validate.RoundUp(n.Status.Capacity)
	validate.RoundUp(n.Status.Allocatable)
}

func validateNode(n *corev1.Node) field.ErrorList {
	e := &validate.Errors{}
	nodeAnnotations(e, n)
	// Upstream reports errors of taints and swap below metadata.
	nodeTaints(e, n.Spec.Taints, field.NewPath("metadata", "taints"))
	nodeResources(e, n)
	if swap := n.Status.NodeInfo.Swap; swap != nil && swap.Capacity != nil && *swap.Capacity <= 0 {
		e.Invalid(field.NewPath("metadata", "nodeSwapStatus", "capacity"), *swap.Capacity, "must be greater than zero")
	}
	declaredFeatures(e, n.Status.DeclaredFeatures, field.NewPath("status", "declaredFeatures"))
	podCIDRs(e, n.Spec.PodCIDRs, field.NewPath("spec", "podCIDRs"))
	return e.List
}

// featureName is the format of the features that kubelets declare (KEP-5328).
var featureName = regexp.MustCompile(`^[A-Z][a-zA-Z0-9]*(/[a-zA-Z][a-zA-Z0-9]*)*$`)

// declaredFeatures validates the names of the features that a kubelet declares, which must be sorted and unique.
func declaredFeatures(e *validate.Errors, names []string, at *field.Path) {
	for i, name := range names {
		switch {
		case len(name) > validation.DNS1123SubdomainMaxLength:
			e.Invalid(at.Index(i), name, fmt.Sprintf("invalid feature name %q: must be no more than %d characters", name, validation.DNS1123SubdomainMaxLength))
		case !featureName.MatchString(name):
			e.Invalid(at.Index(i), name, fmt.Sprintf("invalid feature name %q: must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes", name))
		}
		if i+1 == len(names) {
			return
		}
		switch next := names[i+1]; {
		case name == next:
			e.Duplicate(at.Index(i+1), next)
		case name > next:
			e.Invalid(at.Index(i+1), next, "list must be sorted alphabetically")
		}
	}
}

// podCIDRs validates the pod CIDRs of a Node: at most one of each IP family.
func podCIDRs(e *validate.Errors, cidrs []string, at *field.Path) {
	for i, cidr := range cidrs {
		e.LegacyCIDR(at.Index(i), cidr, nil)
	}
	if len(cidrs) < 2 {
		return
	}
	dual, err := netutils.IsDualStackCIDRStrings(cidrs)
	if err != nil {
		e.Add(field.ErrorList{field.InternalError(at, fmt.Errorf("invalid PodCIDRs. failed to check with dual stack with error:%w", err))})
	}
	if !dual || len(cidrs) > 2 {
		e.Invalid(at, cidrs, "may specify no more than one CIDR for each IP family")
	}

}

// nodeAnnotations validates the annotation with which a Node can avoid the pods of certain controllers.
func nodeAnnotations(e *validate.Errors, n *corev1.Node) {
	value := n.Annotations[corev1.PreferAvoidPodsAnnotationKey]
	if value == "" {
		return
	}
	at := field.NewPath("metadata", "annotations")
	var avoid corev1.AvoidPods
	if err := json.Unmarshal([]byte(value), &avoid); err != nil {
		e.Invalid(at.Child("AvoidPods"), corev1.PreferAvoidPodsAnnotationKey, err.Error())
		return
	}
	for i, entry := range avoid.PreferAvoidPods {
		p := at.Child(corev1.PreferAvoidPodsAnnotationKey).Index(i).Child("PodSignature")
		owner := entry.PodSignature.PodController
		switch {
		case owner == nil:
			e.Required(p, "")
		case !ptr.Deref(owner.Controller, false):
			e.Invalid(p.Child("PodController", "Controller"), false, "must point to a controller")
		}
	}
}

// nodeTaints validates taints, which must be unique by key and effect.
func nodeTaints(e *validate.Errors, taints []corev1.Taint, path *field.Path) {
	for i, t := range taints {
		at := path.Index(i)
		e.LabelName(at.Child("key"), t.Key)
		if msgs := validation.IsValidLabelValue(t.Value); len(msgs) > 0 {
			e.Invalid(at.Child("value"), t.Value, strings.Join(msgs, ";"))
		}
		if t.Effect == "" {
			e.Required(at.Child("effect"), "")
		} else {
			pod.TaintEffect(e, t.Effect, at.Child("effect"))
		}
		if slices.ContainsFunc(taints[:i], func(o corev1.Taint) bool { return o.Key == t.Key && o.Effect == t.Effect }) {
			err := field.Duplicate(at, t)
			err.Detail = "taints must be unique by key and effect pair"
			e.Add(field.ErrorList{err})
		}
	}
}

// nodeResources validates the quantities in the capacity and the allocatable resources of a Node.
func nodeResources(e *validate.Errors, n *corev1.Node) {
	for _, list := range []struct {
		name string
		corev1.ResourceList
	}{{"capacity", n.Status.Capacity}, {"allocatable", n.Status.Allocatable}} {
		for _, name := range slices.Sorted(maps.Keys(list.ResourceList)) {
			e.Quantity(field.NewPath("status", list.name, string(name)), name, list.ResourceList[name])
		}
	}
}

// validateNodeUpdate validates an update of a Node or of its status. Pod CIDRs and the provider ID must not change
// after they have been set.
func validateNodeUpdate(_ context.Context, n, old *corev1.Node) field.ErrorList {
	e, spec := &validate.Errors{}, field.NewPath("spec")
	nodeAnnotations(e, n)
	nodeResources(e, n)
	for i, address := range n.Status.Addresses {
		if slices.Contains(n.Status.Addresses[:i], address) {
			e.Duplicate(field.NewPath("status", "addresses").Index(i), address)
		}
	}
	podCIDRs(e, n.Spec.PodCIDRs, spec.Child("podCIDRs"))
	if len(old.Spec.PodCIDRs) > 0 && !slices.Equal(n.Spec.PodCIDRs, old.Spec.PodCIDRs) {
		e.Forbidden(spec.Child("podCIDRs"), `node updates may not change podCIDR except from "" to valid`)
	}
	declaredFeatures(e, n.Status.DeclaredFeatures, field.NewPath("status", "declaredFeatures"))
	switch was, is := old.Spec.ProviderID, n.Spec.ProviderID; {
	case was == "" || is == was:
	case is == "":
		e.Declared(field.Invalid(spec.Child("providerID"), nil, "field cannot be cleared once set"))
	default:
		e.Declared(field.Invalid(spec.Child("providerID"), nil, "field cannot be modified once set"))
	}
	nodeConfig(e, n)
	nodeTaints(e, n.Spec.Taints, field.NewPath("metadata", "taints"))
	if n.Spec.DoNotUseExternalID != old.Spec.DoNotUseExternalID {
		e.Forbidden(spec.Child("externalID"), "may not be updated")
	}
	return e.List
}

// nodeConfig validates the fields of dynamic kubelet configuration, a removed feature. Nodes that
// were stored with these fields keep them.
func nodeConfig(e *validate.Errors, n *corev1.Node) {
	if s := n.Spec.ConfigSource; s != nil {
		configSource(e, s, field.NewPath("spec", "configSource"), false)
	}
	if c := n.Status.Config; c != nil {
		at := field.NewPath("status", "config")
		for _, one := range []struct {
			name string
			*corev1.NodeConfigSource
		}{{"assigned", c.Assigned}, {"active", c.Active}, {"lastKnownGood", c.LastKnownGood}} {
			if one.NodeConfigSource != nil {
				configSource(e, one.NodeConfigSource, at.Child(one.name), true)
			}
		}
	}
}

// configSource validates a node's reference to a ConfigMap with its kubelet configuration. If
// resolved is set, the reference is in the status and must contain the UID and resourceVersion of
// the ConfigMap. Otherwise it is in the spec and must not contain them.
func configSource(e *validate.Errors, s *corev1.NodeConfigSource, at *field.Path, resolved bool) {
	m := s.ConfigMap
	if m == nil {
		e.Invalid(at, s, "exactly one reference subfield must be non-nil")
		return
	}
	at = at.Child("configMap")
	for _, one := range []struct{ name, value string }{{"uid", string(m.UID)}, {"resourceVersion", m.ResourceVersion}} {
		switch {
		case resolved && one.value == "":
			e.Required(at.Child(one.name), "")
		case !resolved && one.value != "":
			e.Forbidden(at.Child(one.name), one.name+" must not be set in spec")
		}
	}
	for _, one := range []struct {
		name, value string
		wrong       func(string) []string
	}{
		{"namespace", m.Namespace, validation.IsDNS1123Label},
		{"name", m.Name, validation.IsDNS1123Subdomain},
		{"kubeletConfigKey", m.KubeletConfigKey, validation.IsConfigMapKey},
	} {
		if one.value == "" {
			e.Required(at.Child(one.name), "")
		} else {
			e.InvalidAll(at.Child(one.name), one.value, one.wrong(one.value))
		}
	}
}

// nodeWarnings returns warnings for removed and deprecated fields, and for pod CIDRs in a non-standard notation.
func nodeWarnings(_ context.Context, n, _ *corev1.Node) []string {
	var out []string
	if n.Spec.ConfigSource != nil {
		out = append(out, "spec.configSource: the feature is removed")
	}
	if n.Spec.DoNotUseExternalID != "" {
		out = append(out, "spec.externalID: this field is deprecated, and is unused by Kubernetes")
	}
	for i, cidr := range n.Spec.PodCIDRs {
		out = append(out, validate.CIDRWarnings(field.NewPath("spec", "podCIDRs").Index(i), cidr)...)
	}
	return out
}

// nodeRow returns the cells of a Node, among others its status, roles and addresses.
func nodeRow(n *corev1.Node) []any {
	status := "Unknown"
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			status = "NotReady"
			if c.Status == corev1.ConditionTrue {
				status = "Ready"
			}
		}
	}
	if n.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	address := func(t corev1.NodeAddressType) string {
		for _, a := range n.Status.Addresses {
			if a.Type == t {
				return a.Address
			}
		}
		return "<none>"
	}
	known := func(s string) string {
		if s == "" {
			return "<unknown>"
		}
		return s
	}
	info := &n.Status.NodeInfo
	kernel := known(info.KernelVersion)
	if info.Architecture != "" {
		kernel += " (" + info.Architecture + ")"
	}
	return []any{
		n.Name, status, nodeRoles(n), api.Age(n.CreationTimestamp), info.KubeletVersion,
		address(corev1.NodeInternalIP), address(corev1.NodeExternalIP),
		known(info.OSImage), kernel, known(info.ContainerRuntimeVersion),
	}
}

// nodeRoles returns the roles of a Node from its labels, sorted and joined with commas, or "<none>".
func nodeRoles(n *corev1.Node) string {
	var roles []string
	for k, v := range n.Labels {
		if role, ok := strings.CutPrefix(k, "node-role.kubernetes.io/"); ok && role != "" {
			roles = append(roles, role)
		} else if k == "kubernetes.io/role" && v != "" {
			roles = append(roles, v)
		}
	}
	if len(roles) == 0 {
		return "<none>"
	}
	slices.Sort(roles)
	return strings.Join(slices.Compact(roles), ",")
}
