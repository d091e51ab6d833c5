package admission

import (
	"context"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"hyperkube/components/apiserver/authz"
	"hyperkube/internal/api/validate"
)

// nodeRestriction is the plugin NodeRestriction. It limits what kubelets may write to their own
// node and the pods on it, where authorization cannot decide because it does not see the object.
//
// https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#noderestriction
type nodeRestriction struct {
	operations
	pods       Pods
	kube       kubernetes.Interface
	authorizer authorizer.Authorizer
}

// newNodeRestriction creates the plugin NodeRestriction. It never fails.
func newNodeRestriction(cfg *Config) (admission.Interface, error) {
	return &nodeRestriction{
		operations: operations{admission.Create, admission.Update, admission.Delete},
		pods:       cfg.pods(),
		kube:       cfg.Kube,
		authorizer: cfg.Authorizer,
	}, nil
}

// Admit rejects a write by a kubelet that does not concern its own node or a pod on it, or changes fields that a
// kubelet must not set. Requests of other users are not checked. It changes nothing, but runs in the mutating phase,
// as in upstream, before plugins that set the fields that it checks.
func (p *nodeRestriction) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	u := a.GetUserInfo()
	node, ok := authz.NodeName(u)
	if !ok {
		return nil
	}
	if node == "" {
		return forbid(a, "could not determine node from user %q", u.GetName())
	}
	r := a.GetResource()
	switch r.Group + "/" + r.Resource {
	case "/pods":
		switch sub := a.GetSubresource(); sub {
		case "":
			return p.pod(ctx, node, a)
		case "status":
			return podStatus(node, a)
		case "eviction":
			return p.eviction(ctx, node, a)
		default:
			return forbid(a, "unexpected pod subresource %q, only 'status' and 'eviction' are allowed", sub)
		}
	case "/nodes":
		return nodeItself(node, a)
	case "/persistentvolumeclaims":
		return claimStatus(node, a)
	case "/serviceaccounts":
		return p.token(ctx, node, a)
	case "coordination.k8s.io/leases":
		return lease(node, a)
	case "storage.k8s.io/csinodes":
		return csiNode(node, a)
	case "resource.k8s.io/resourceslices":
		return resourceSlice(node, a)
	case "certificates.k8s.io/certificatesigningrequests":
		return signingRequest(node, a)
	case "certificates.k8s.io/podcertificaterequests":
		return p.podCertificate(ctx, node, a)
	}
	return nil
}

// unexpectedType returns the Forbidden error that rejects a request because obj has an unexpected type. If obj is
// nil, the error names the type of the request's object.
func unexpectedType(a admission.Attributes, obj any) error {
	if obj == nil {
		obj = a.GetObject()
	}
	return forbid(a, "unexpected type %T", obj)
}

// nodeItself rejects a kubelet's write of another Node than its own. It also rejects changes of taints and owners, a
// new spec.configSource, and labels that a kubelet must not set.
func nodeItself(node string, a admission.Attributes) error {
	name := a.GetName()
	if meta, ok := a.GetObject().(metav1.Object); ok && name == "" && a.GetOperation() == admission.Create {
		name = meta.GetName()
	}
	if name != node {
		return forbid(a, "node %q is not allowed to modify node %q", node, name)
	}
	if a.GetOperation() == admission.Create {
		n, ok := a.GetObject().(*corev1.Node)
		if !ok {
			return unexpectedType(a, nil)
		}
		if n.Spec.ConfigSource != nil {
			return forbid(a, "node %q is not allowed to create pods with a non-nil configSource", node)
		}
		if bad := forbiddenLabels(n.Labels, nil); len(bad) > 0 {
			return forbid(a, "node %q is not allowed to set the following labels: %s", node, strings.Join(bad, ", "))
		}
	}
	if a.GetOperation() != admission.Update {
		return nil
	}
	n, ok := a.GetObject().(*corev1.Node)
	if !ok {
		return unexpectedType(a, nil)
	}
	old, ok := a.GetOldObject().(*corev1.Node)
	if !ok {
		return unexpectedType(a, a.GetOldObject())
	}
	if n.Spec.ConfigSource != nil && !equality.Semantic.DeepEqual(n.Spec.ConfigSource, old.Spec.ConfigSource) {
		return forbid(a, "node %q is not allowed to update configSource to a new non-nil configSource", node)
	}
	// A node that can remove its taints could attract pods.
	if !equality.Semantic.DeepEqual(n.Spec.Taints, old.Spec.Taints) {
		return forbid(a, "node %q is not allowed to modify taints", node)
	}
	// A node that can set an owner could have itself garbage collected.
	if !equality.Semantic.DeepEqual(n.OwnerReferences, old.OwnerReferences) {
		return forbid(a, "node %q is not allowed to modify ownerReferences", node)
	}
	if bad := forbiddenLabels(n.Labels, old.Labels); len(bad) > 0 {
		return forbid(a, "is not allowed to modify labels: %s", strings.Join(bad, ", "))
	}
	return nil
}

// forbiddenLabels returns the keys of the labels that a kubelet adds, changes or removes but may not, sorted: those
// below node-restriction.kubernetes.io, and those of kubernetes.io and k8s.io that are not the kubelet's. old is nil
// for a new node.
func forbiddenLabels(labels, old map[string]string) []string {
	var bad []string
	check := func(key string) {
		namespace, _, ok := strings.Cut(key, "/")
		if !ok {
			return
		}
		under := func(domain string) bool { return namespace == domain || strings.HasSuffix(namespace, "."+domain) }
		if under(corev1.LabelNamespaceNodeRestriction) ||
			(under("kubernetes.io") || under("k8s.io")) && !kubeletapis.IsKubeletLabel(key) {
			bad = append(bad, key)
		}
	}
	for k, v := range labels {
		if o, had := old[k]; !had || o != v {
			check(k)
		}
	}
	for k := range old {
		if _, has := labels[k]; !has {
			check(k)
		}
	}
	slices.Sort(bad)
	return bad
}

// claimStatus rejects a kubelet's write of a PersistentVolumeClaim unless it updates the status, and only the fields
// that change when a volume is expanded on the node: capacity, conditions and allocated resources.
func claimStatus(node string, a admission.Attributes) error {
	if a.GetSubresource() != "status" {
		return forbid(a, "may only update PVC status")
	}
	if op := a.GetOperation(); op != admission.Update {
		return forbid(a, "unexpected operation %q", op)
	}
	old, ok := a.GetOldObject().(*corev1.PersistentVolumeClaim)
	if !ok {
		return unexpectedType(a, a.GetOldObject())
	}
	pvc, ok := a.GetObject().(*corev1.PersistentVolumeClaim)
	if !ok {
		return unexpectedType(a, nil)
	}
	// Only fields that change when a volume is expanded on the node may differ.
	o, n := old.DeepCopy(), pvc.DeepCopy()
	for _, c := range []*corev1.PersistentVolumeClaim{o, n} {
		c.ResourceVersion = ""
		c.ManagedFields = nil
		c.Status.Capacity = nil
		c.Status.Conditions = nil
		c.Status.AllocatedResources = nil
		c.Status.AllocatedResourceStatuses = nil
	}
	if !equality.Semantic.DeepEqual(o, n) {
		return forbid(a, "node %q is not allowed to update fields other than status.quantity and status.conditions: %v", node, validate.Diff(o, n))
	}
	return nil
}

// token rejects a kubelet's token request unless it is bound, by name and UID, to a pod that runs on the node, and
// checkAudience permits its audience. Other requests for service accounts are not checked.
func (p *nodeRestriction) token(ctx context.Context, node string, a admission.Attributes) error {
	if a.GetOperation() != admission.Create || a.GetSubresource() != "token" {
		return nil
	}
	req, ok := a.GetObject().(*authenticationv1.TokenRequest)
	if !ok {
		return unexpectedType(a, nil)
	}
	ref := req.Spec.BoundObjectRef
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "" {
		return forbid(a, "node requested token not bound to a pod")
	}
	if ref.UID == "" {
		return forbid(a, "node requested token with a pod binding without a uid")
	}
	pod, err := p.find(ctx, a.GetNamespace(), ref.Name)
	if err == nil && ref.UID != pod.UID {
		// The informer may still have a previous pod with this name.
		pod, err = p.kube.CoreV1().Pods(a.GetNamespace()).Get(ctx, ref.Name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return err
	}
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	if ref.UID != pod.UID {
		return forbid(a, "the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID)
	}
	if pod.Spec.NodeName != node {
		return forbid(a, "node requested token bound to a pod scheduled on a different node")
	}
	return p.checkAudience(ctx, a, req, pod)
}

// lease rejects a kubelet's write of a Lease outside of the namespace kube-node-lease, or with another name than that
// of its node.
func lease(node string, a admission.Attributes) error {
	if a.GetNamespace() != corev1.NamespaceNodeLease {
		return forbid(a, "can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	}
	name := a.GetName()
	if a.GetOperation() == admission.Create {
		l, ok := a.GetObject().(*coordinationv1.Lease)
		if !ok {
			return unexpectedType(a, nil)
		}
		name = l.Name
	}
	if name != node {
		return forbid(a, "can only access node lease with the same name as the requesting node")
	}
	return nil
}

// csiNode rejects a kubelet's write of a CSINode that does not have the name of its node.
func csiNode(node string, a admission.Attributes) error {
	name := a.GetName()
	if a.GetOperation() == admission.Create {
		meta, ok := a.GetObject().(metav1.Object)
		if !ok {
			return unexpectedType(a, nil)
		}
		name = meta.GetName()
	}
	if name != node {
		return forbid(a, "can only access CSINode with the same name as the requesting node")
	}
	return nil
}

// resourceSlice rejects the creation and deletion of a ResourceSlice by a kubelet unless its spec names the kubelet's
// node. Updates need no check, because the node name is immutable.
func resourceSlice(node string, a admission.Attributes) error {
	var obj any
	var what string
	switch a.GetOperation() {
	case admission.Create:
		obj, what = a.GetObject(), "create"
	case admission.Delete:
		obj, what = a.GetOldObject(), "delete"
	default:
		// The node name is immutable.
		return nil
	}
	slice, ok := obj.(*resourcev1.ResourceSlice)
	if !ok {
		// Other versions of the type are rejected because the check needs this version.
		return unexpectedType(a, obj)
	}
	if slice.Spec.NodeName == nil || *slice.Spec.NodeName != node {
		return forbid(a, "can only %s ResourceSlice with the same NodeName as the requesting node", what)
	}
	return nil
}

// signingRequest rejects a new CertificateSigningRequest of a kubelet for one of the two signers of kubelet
// certificates if its common name is not that of the kubelet's node.
func signingRequest(node string, a admission.Attributes) error {
	if a.GetOperation() != admission.Create || a.GetSubresource() != "" {
		return nil
	}
	csr, ok := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return unexpectedType(a, nil)
	}
	switch csr.Spec.SignerName {
	case certificatesv1.KubeletServingSignerName, certificatesv1.KubeAPIServerClientKubeletSignerName:
	default:
		return nil
	}
	req, err := certificateRequest(a, csr)
	if err != nil {
		return err
	}
	if want := "system:node:" + node; req.Subject.CommonName != want {
		return forbid(a, "can only create a node CSR with CN=%s", want)
	}
	return nil
}
