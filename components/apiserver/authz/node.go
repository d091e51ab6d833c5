package authz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"hyperkube/components/apiserver/syncgate"
)

// nodeAuthorizer is the authorizer of the mode Node. It allows kubelets to read the objects to
// which their pods refer, and to write their own objects. The NodeRestriction admission plugin
// limits what they may change in those objects.
//
// https://kubernetes.io/docs/reference/access-authn-authz/node/
type nodeAuthorizer struct {
	graph *graph
	kube  kubernetes.Interface
	gate  *syncgate.Gate
	// fixed contains the permissions that all nodes have, regardless of their pods.
	fixed ruleSet
	// pendingPodTimeout is how long a request is delayed before it is rejected, because the graph may not contain a
	// new pod yet.
	pendingPodTimeout time.Duration
}

const (
	nodeUserPrefix = "system:node:"
	nodesGroup     = "system:nodes"
	leaseNamespace = corev1.NamespaceNodeLease
)

// newNodeAuthorizer returns a nodeAuthorizer. If pods is nil, it reads pods from an informer of inf. Otherwise the
// caller must call follow, because requests wait until all pods are known.
func newNodeAuthorizer(inf informers.SharedInformerFactory, kube kubernetes.Interface, pods Pods) (*nodeAuthorizer, error) {
	n := &nodeAuthorizer{graph: newGraph(), kube: kube, pendingPodTimeout: 100 * time.Millisecond}
	n.fixed.add(nodeRules, "")
	if pods != nil {
		n.gate = syncgate.NewGate(n.graph)
		return n, nil
	}
	reg, err := inf.Core().V1().Pods().Informer().AddEventHandler(n.graph.handler())
	if err != nil {
		return nil, fmt.Errorf("watching pods: %w", err)
	}
	n.gate = syncgate.NewGate(reg.HasSyncedChecker())
	return n, nil
}

// follow updates the graph with the pods that pods reports, until ctx is canceled. Once all existing pods are
// reported, waiting requests continue.
func (n *nodeAuthorizer) follow(ctx context.Context, pods Pods) error {
	first := true
	return pods.Follow(ctx, n.graph.set, n.graph.removed, func(is func(namespace, name string) bool) {
		if first {
			first = false
			close(n.graph.filled)
			return
		}
		n.graph.retain(is)
	})
}

// isNode reports whether u is a kubelet: a user system:node:NAME in the group system:nodes. The
// name may be empty.
func isNode(u user.Info) bool {
	return slices.Contains(u.GetGroups(), nodesGroup) && strings.HasPrefix(u.GetName(), nodeUserPrefix)
}

// NodeName returns the name of the node whose kubelet u is, which may be empty, and false if u is
// not a kubelet.
func NodeName(u user.Info) (string, bool) {
	if u == nil || !isNode(u) {
		return "", false
	}
	return strings.TrimPrefix(u.GetName(), nodeUserPrefix), true
}

// nodeRules are the permissions that every kubelet has, whichever pods run on its node.
var nodeRules = []rbacv1.PolicyRule{
	{Verbs: []string{"create"}, APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}},
	{Verbs: []string{"create"}, APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews", "localsubjectaccessreviews"}},
	{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{""}, Resources: []string{"services"}},
	{Verbs: []string{"create", "patch", "update"}, APIGroups: []string{""}, Resources: []string{"events"}},
	{Verbs: []string{"create", "patch", "update"}, APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}},
	{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"endpoints"}},
	{Verbs: []string{"create", "get", "list", "watch"}, APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"certificatesigningrequests"}},
	{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"clustertrustbundles"}},
	{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{"storage.k8s.io"}, Resources: []string{"csidrivers"}},
	{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{"node.k8s.io"}, Resources: []string{"runtimeclasses"}},
}

// noOpinion returns the decision "no opinion", which lets the next mode decide, with a formatted
// reason.
func noOpinion(format string, args ...any) (authorizer.Decision, string, error) {
	return authorizer.DecisionNoOpinion, fmt.Sprintf(format, args...), nil
}

// allow returns the authorizer's result for a request that the mode Node allows, without a reason.
func allow() (authorizer.Decision, string, error) { return authorizer.DecisionAllow, "", nil }

// RulesFor implements authorizer.RuleResolver. The permissions of a kubelet depend on its pods and
// cannot be listed, which is reported as an error. It returns no rules for other users.
func (n *nodeAuthorizer) RulesFor(_ context.Context, u user.Info, _ string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	if u == nil || !isNode(u) {
		return nil, nil, false, nil
	}
	return nil, nil, true, errors.New("node authorizer does not support user rule resolution")
}

// Authorize implements authorizer.UnconditionalAuthorizer. It only decides about requests of kubelets, after all pods
// are known. It allows a request or has no opinion; it never denies.
func (n *nodeAuthorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	u := a.GetUser()
	if !isNode(u) {
		return authorizer.DecisionNoOpinion, "", nil
	}
	node := strings.TrimPrefix(u.GetName(), nodeUserPrefix)
	if node == "" {
		return noOpinion("unknown node for user %q", u.GetName())
	}
	if err := n.gate.Wait(ctx); err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	if a.IsResourceRequest() {
		switch a.GetAPIGroup() + "/" + a.GetResource() {
		case "/secrets":
			return n.readNamespaced(ctx, node, refSecret, a)
		case "/configmaps":
			return n.readNamespaced(ctx, node, refConfigMap, a)
		case "/persistentvolumeclaims":
			return n.claim(ctx, node, a)
		case "/persistentvolumes":
			return n.volume(ctx, node, a)
		case "/pods":
			return n.pod(ctx, node, a)
		case "/nodes":
			return n.node(node, a)
		case "/serviceaccounts":
			return n.serviceAccount(ctx, node, a)
		case "resource.k8s.io/resourceclaims":
			return n.get(ctx, node, refResourceClaim, a)
		case "resource.k8s.io/resourceslices":
			return n.resourceSlice(ctx, node, a)
		case "storage.k8s.io/volumeattachments":
			return n.attachment(ctx, node, a)
		case "storage.k8s.io/csinodes":
			return n.csiNode(node, a)
		case "coordination.k8s.io/leases":
			return n.lease(node, a)
		case "certificates.k8s.io/podcertificaterequests":
			return n.podCertificate(ctx, node, a)
		}
	}
	if reason, ok := n.fixed.allows(a); ok {
		return authorizer.DecisionAllow, reason, nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// unrelated returns no opinion, with the reason that the object has no relationship to the node.
func unrelated(node string) (authorizer.Decision, string, error) {
	return noOpinion("no relationship found between node '%s' and this object", node)
}

// related allows a request for the object r if a pod of the node refers to it, directly or, for a Secret, through a
// persistent volume. Otherwise, and without a name, it has no opinion.
func (n *nodeAuthorizer) related(ctx context.Context, node string, r ref) (authorizer.Decision, string, error) {
	if r.name == "" {
		return noOpinion("No Object name found")
	}
	if n.graph.has(ctx, node, r, n.pendingPodTimeout) {
		return allow()
	}
	if r.kind == refSecret && n.secretOfVolume(ctx, node, r) {
		return allow()
	}
	return unrelated(node)
}

// get allows a kubelet to get a single object of a kind to which one of its pods refers.
func (n *nodeAuthorizer) get(ctx context.Context, node string, kind refKind, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetVerb() != "get" {
		return noOpinion("can only get individual resources of this type")
	}
	if a.GetSubresource() != "" {
		return noOpinion("cannot get subresource")
	}
	return n.related(ctx, node, ref{kind, a.GetNamespace(), a.GetName()})
}

// readNamespaced allows a kubelet to get, list or watch a single object to which one of its pods refers: a Secret, a
// ConfigMap or a service account, which kubelets watch individually. The request must name the object and its
// namespace.
func (n *nodeAuthorizer) readNamespaced(ctx context.Context, node string, kind refKind, a authorizer.Attributes) (authorizer.Decision, string, error) {
	switch a.GetVerb() {
	case "get", "list", "watch":
	default:
		return noOpinion("can only read resources of this type")
	}
	if a.GetSubresource() != "" {
		return noOpinion("cannot read subresource")
	}
	if a.GetNamespace() == "" {
		return noOpinion("can only read namespaced object of this type")
	}
	return n.related(ctx, node, ref{kind, a.GetNamespace(), a.GetName()})
}

// claim allows a kubelet to get the PersistentVolumeClaims of its pods and to update and patch their status.
func (n *nodeAuthorizer) claim(ctx context.Context, node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetSubresource() != "status" {
		return n.get(ctx, node, refClaim, a)
	}
	switch a.GetVerb() {
	case "update", "patch":
		return n.related(ctx, node, ref{refClaim, a.GetNamespace(), a.GetName()})
	}
	return noOpinion("can only get/update/patch this type")
}

// volume allows a kubelet to get a persistent volume that is bound to a claim of one of its pods.
// Such requests are rare, so volumes are read through the API.
func (n *nodeAuthorizer) volume(ctx context.Context, node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	switch {
	case a.GetVerb() != "get":
		return noOpinion("can only get individual resources of this type")
	case a.GetSubresource() != "":
		return noOpinion("cannot get subresource")
	case a.GetName() == "":
		return noOpinion("No Object name found")
	}
	pv, err := n.kube.CoreV1().PersistentVolumes().Get(ctx, a.GetName(), metav1.GetOptions{})
	if err != nil || pv.Spec.ClaimRef == nil {
		return unrelated(node)
	}
	return n.related(ctx, node, ref{refClaim, pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name})
}

// secretOfVolume reports whether a persistent volume that is bound to a claim of one of the node's
// pods refers to the Secret.
func (n *nodeAuthorizer) secretOfVolume(ctx context.Context, node string, secret ref) bool {
	for _, c := range n.graph.claims(node) {
		pvc, err := n.kube.CoreV1().PersistentVolumeClaims(c.namespace).Get(ctx, c.name, metav1.GetOptions{})
		if err != nil || pvc.Spec.VolumeName == "" {
			continue
		}
		pv, err := n.kube.CoreV1().PersistentVolumes().Get(ctx, pvc.Spec.VolumeName, metav1.GetOptions{})
		if err != nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.Namespace != c.namespace || pv.Spec.ClaimRef.Name != c.name {
			continue
		}
		if slices.Contains(volumeSecrets(pv), secret) {
			return true
		}
	}
	return false
}

// attachment allows a kubelet to get, by name, the VolumeAttachments of its node. They are read through the API.
func (n *nodeAuthorizer) attachment(ctx context.Context, node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	switch {
	case a.GetVerb() != "get":
		return noOpinion("can only get individual resources of this type")
	case a.GetSubresource() != "":
		return noOpinion("cannot get subresource")
	case a.GetName() == "":
		return noOpinion("No Object name found")
	}
	va, err := n.kube.StorageV1().VolumeAttachments().Get(ctx, a.GetName(), metav1.GetOptions{})
	if err != nil || va.Spec.NodeName != node {
		return unrelated(node)
	}
	return allow()
}

// serviceAccount allows a kubelet to create tokens for the service accounts of its pods, and to get these service
// accounts.
func (n *nodeAuthorizer) serviceAccount(ctx context.Context, node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	verb, sub := a.GetVerb(), a.GetSubresource()
	switch {
	case verb == "get" && sub == "":
		// For image credential providers that use service account tokens.
		return n.readNamespaced(ctx, node, refServiceAccount, a)
	case verb != "create" || a.GetName() == "":
		return noOpinion("can only create tokens for individual service accounts")
	case sub != "token":
		return noOpinion("can only create token subresource of serviceaccount")
	}
	return n.related(ctx, node, ref{refServiceAccount, a.GetNamespace(), a.GetName()})
}

// selects reports whether the field selector of the request requires that the field has the value. It returns false
// if the selector is invalid.
func selects(a authorizer.Attributes, field, value string) bool {
	reqs, err := a.GetFieldSelector()
	if err != nil {
		return false
	}
	for _, r := range reqs {
		if (r.Operator == selection.Equals || r.Operator == selection.DoubleEquals || r.Operator == selection.In) && r.Field == field && r.Value == value {
			return true
		}
	}
	return false
}

// node allows a kubelet to read its own Node, and to write Nodes and their status; the admission plugin
// NodeRestriction limits writes to its own Node. Lists and watches must name the node or select it by metadata.name.
func (n *nodeAuthorizer) node(node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	verb := a.GetVerb()
	switch a.GetSubresource() {
	case "":
		switch verb {
		case "create", "update", "patch":
			// NodeRestriction checks which nodes.
			return allow()
		case "get", "list", "watch":
			switch name := a.GetName(); {
			case name == node || name == "" && verb != "get" && selects(a, "metadata.name", node):
				return allow()
			case name == "":
				return noOpinion("node '%s' cannot read all nodes, only its own Node object", node)
			default:
				return noOpinion("node '%s' cannot read '%s', only its own Node object", node, name)
			}
		}
	case "status":
		if verb == "update" || verb == "patch" {
			return allow()
		}
	}
	return noOpinion("")
}

// pod allows a kubelet to read the pods of its node, and to create, delete and evict pods and write their status.
// Lists and watches must select the node by spec.nodeName, or name a pod. The admission plugin NodeRestriction limits
// writes to pods of its node.
func (n *nodeAuthorizer) pod(ctx context.Context, node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	verb := a.GetVerb()
	switch a.GetSubresource() {
	case "":
		switch verb {
		case "get":
			return n.related(ctx, node, ref{refPod, a.GetNamespace(), a.GetName()})
		case "list", "watch":
			if selects(a, "spec.nodeName", node) {
				return allow()
			}
			if a.GetName() != "" {
				return n.related(ctx, node, ref{refPod, a.GetNamespace(), a.GetName()})
			}
			return noOpinion("can only list/watch pods with spec.nodeName field selector")
		case "create", "delete":
			// NodeRestriction checks which pods.
			return allow()
		}
	case "status":
		if verb == "update" || verb == "patch" {
			return allow()
		}
	case "eviction":
		if verb == "create" {
			return allow()
		}
	}
	return noOpinion("")
}

// lease allows a kubelet to get and write the Lease of its node in kube-node-lease, with which it shows that it is
// running.
func (n *nodeAuthorizer) lease(node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	switch a.GetVerb() {
	case "get", "create", "update", "patch", "delete":
	default:
		return noOpinion("can only get, create, update, patch, or delete a node lease")
	}
	if a.GetNamespace() != leaseNamespace {
		return noOpinion("can only access leases in the %q system namespace", leaseNamespace)
	}
	// The name of a new lease is not known here. NodeRestriction checks it.
	if a.GetVerb() != "create" && a.GetName() != node {
		return noOpinion("can only access node lease with the same name as the requesting node")
	}
	return allow()
}

// csiNode allows a kubelet to get and write the CSINode of its node. It cannot list or watch them.
func (n *nodeAuthorizer) csiNode(node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetSubresource() != "" {
		return noOpinion("cannot authorize CSINode subresources")
	}
	switch a.GetVerb() {
	case "get", "create", "update", "patch", "delete":
	default:
		return noOpinion("can only get, create, update, patch, or delete a CSINode")
	}
	if a.GetVerb() != "create" && a.GetName() != node {
		return noOpinion("can only access CSINode with the same name as the requesting node")
	}
	return allow()
}

// resourceSlice allows a kubelet to create ResourceSlices, and to read, change and delete those of its node. Lists,
// watches and deletions of collections must select the node by spec.nodeName.
func (n *nodeAuthorizer) resourceSlice(ctx context.Context, node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetSubresource() != "" {
		return noOpinion("cannot authorize ResourceSlice subresources")
	}
	switch a.GetVerb() {
	case "create":
		return allow()
	case "get", "update", "patch", "delete":
		s, err := n.kube.ResourceV1().ResourceSlices().Get(ctx, a.GetName(), metav1.GetOptions{})
		if err != nil || s.Spec.NodeName == nil || *s.Spec.NodeName != node {
			return unrelated(node)
		}
		return allow()
	case "list", "watch", "deletecollection":
		if selects(a, "spec.nodeName", node) {
			return allow()
		}
		return noOpinion("can only list/watch/deletecollection resourceslices with nodeName field selector")
	}
	return noOpinion("only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection")
}

// podCertificate allows a kubelet to create PodCertificateRequests, and to get, list and watch those of its node.
// Lists and watches must select the node by spec.nodeName. A get is rare, so the object is then read through the API.
func (n *nodeAuthorizer) podCertificate(ctx context.Context, node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetSubresource() != "" {
		return noOpinion("nodes may not access the status subresource of PodCertificateRequests")
	}
	switch a.GetVerb() {
	case "create":
		// NodeRestriction checks which requests.
		return allow()
	case "get":
		r, err := n.kube.CertificatesV1().PodCertificateRequests(a.GetNamespace()).Get(ctx, a.GetName(), metav1.GetOptions{})
		if err != nil || string(r.Spec.NodeName) != node {
			return unrelated(node)
		}
		return allow()
	case "list", "watch":
		if selects(a, "spec.nodeName", node) {
			return allow()
		}
		return noOpinion("can only list/watch podcertificaterequests with nodeName field selector")
	}
	return noOpinion("nodes may not %s podcertificaterequests", a.GetVerb())
}
