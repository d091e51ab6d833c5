package admission

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

func csr(t *testing.T, signer, cn string, orgs ...string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: cn, Organization: orgs}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: certificatesv1.CertificateSigningRequestSpec{
		SignerName: signer, Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})}}
}

func podCertificate(node types.NodeName, pod string, uid types.UID) *certificatesv1.PodCertificateRequest {
	return &certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Name: "r", Namespace: "ns"}, Spec: certificatesv1.PodCertificateRequestSpec{
		PodName: pod, PodUID: uid, NodeName: node, NodeUID: "n1-uid", SignerName: "example.org/s", ServiceAccountName: "certified", ServiceAccountUID: "sa-uid",
	}}
}

func TestNodeRestriction(t *testing.T) {
	on := func(node, name string) *corev1.Pod {
		return pod(func(p *corev1.Pod) {
			p.Name, p.UID, p.Spec.NodeName, p.Spec.ServiceAccountName = name, "uid-"+"1", node, "certified"
			p.Spec.Volumes = []corev1.Volume{{Name: "own", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}}, {PodCertificate: &corev1.PodCertificateProjection{SignerName: "example.org/s"}}}}}}}
		})
	}
	withAudience := on("n1", "audience")
	withAudience.Spec.Volumes = []corev1.Volume{{Name: "t", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "vault"}}}}}}}
	byDriver, byClaim := on("n1", "driver"), on("n1", "claim")
	byDriver.Spec.Volumes = []corev1.Volume{{Name: "c", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "csi"}}}}
	byClaim.Spec.Volumes = []corev1.Volume{{Name: "e", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{}}}}}
	without := on("n1", "bare")
	without.Spec.Volumes = nil
	granted := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		switch a.GetVerb() + " " + a.GetAPIGroup() + "/" + a.GetResource() + " " + a.GetNamespace() + "/" + a.GetName() {
		case "request-serviceaccounts-token-audience /granted ns/sa",
			"request-serviceaccounts-podcertificate-signer certificates.k8s.io/example.org:granted ns/certified":
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	})
	claimOf := func(change func(*corev1.PersistentVolumeClaimStatus)) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
		if change != nil {
			change(&c.Status)
		}
		return c
	}
	signer := func(name string) *certificatesv1.PodCertificateRequest {
		r := podCertificate("n1", "mine", "uid-1")
		r.Spec.SignerName = name
		return r
	}
	c, _ := chain(t, Config{Authorizer: granted}, []string{"NodeRestriction"},
		byDriver, byClaim, without, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "csi"}, Spec: storagev1.CSIDriverSpec{TokenRequests: []storagev1.TokenRequest{{Audience: "aws"}}}},
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim-e"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi"}}}},
		on("n1", "mine"), on("n2", "other"), withAudience, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "n1-uid"}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "certified", Namespace: "ns", UID: "sa-uid"}})
	n1 := &user.DefaultInfo{Name: "system:node:n1", Groups: []string{"system:nodes"}}
	yes := true
	mirror := func(change func(*corev1.Pod)) *corev1.Pod {
		return pod(func(p *corev1.Pod) {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
			p.Spec.NodeName = "n1"
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "n1-uid", Controller: &yes}}
			if change != nil {
				change(p)
			}
		})
	}
	node := func(name string, change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if change != nil {
			change(n)
		}
		return n
	}
	label := func(k string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Labels = map[string]string{k: "v"} }
	}
	token := func(pod, uid string, audiences ...string) *authenticationv1.TokenRequest {
		r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
		if pod != "" {
			r.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod, UID: "uid-1"}
			if uid != "" {
				r.Spec.BoundObjectRef.UID = "other"
			}
		}
		return r
	}
	lease := func(name string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	slice := func(node string) *resourcev1.ResourceSlice {
		return &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{NodeName: &node}}
	}
	labelled := on("n1", "mine")
	labelled.Labels = map[string]string{"a": "b"}
	tests := []struct {
		name string
		w    write
		err  string
	}{
		{"others are free", write{user: &user.DefaultInfo{Name: "ann"}, resource: "/nodes", op: admission.Update, obj: node("n2", nil), old: node("n2", nil)}, ""},
		{"nameless", write{user: &user.DefaultInfo{Name: "system:node:", Groups: []string{"system:nodes"}}, resource: "/pods"}, `could not determine node from user "system:node:"`},
		{"mirror pod", write{resource: "/pods", ns: "ns", obj: mirror(nil)}, ""},
		{"plain pod", write{resource: "/pods", ns: "ns", obj: on("n1", "x")}, `pod does not have "kubernetes.io/config.mirror" annotation, node "n1" can only create mirror pods`},
		{"mirror elsewhere", write{resource: "/pods", ns: "ns", obj: mirror(func(p *corev1.Pod) { p.Spec.NodeName = "n2" })}, "can only create pods with spec.nodeName set to itself"},
		{"mirror without owner", write{resource: "/pods", ns: "ns", obj: mirror(func(p *corev1.Pod) { p.OwnerReferences = nil })}, `node "n1" can only create pods with an owner reference set to itself`},
		{"mirror of an earlier node", write{resource: "/pods", ns: "ns", obj: mirror(func(p *corev1.Pod) { p.OwnerReferences[0].UID = "x" })}, "node n1 UID mismatch: expected x got n1-uid"},
		{"mirror with account", write{resource: "/pods", ns: "ns", obj: mirror(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "x" })}, `node "n1" can not create pods that reference serviceaccounts`},
		{"mirror with ConfigMap", write{resource: "/pods", ns: "ns", obj: mirror(func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}}}
		})}, "can not create pods that reference configmaps"},
		{"mirror with CSI", write{resource: "/pods", ns: "ns", obj: mirror(func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{}}}}
		})}, "can not create pods that reference csidrivers (via CSI volumes)"},
		{"mirror with a certificate", write{resource: "/pods", ns: "ns", obj: mirror(func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{PodCertificate: &corev1.PodCertificateProjection{}}}}}}}
		})}, "can not create pods that reference podcertificates"},
		{"delete own", write{op: admission.Delete, resource: "/pods", ns: "ns", name: "mine"}, ""},
		{"delete other's", write{op: admission.Delete, resource: "/pods", ns: "ns", name: "other"}, `node "n1" can only delete pods with spec.nodeName set to itself`},
		{"delete none", write{op: admission.Delete, resource: "/pods", ns: "ns", name: "none"}, `"none" not found`},
		{"update", write{op: admission.Update, resource: "/pods", ns: "ns", obj: on("n1", "mine"), old: on("n1", "mine")}, `unexpected operation "UPDATE"`},
		{"status", write{op: admission.Update, resource: "/pods", sub: "status", ns: "ns", obj: on("n1", "mine"), old: on("n1", "mine")}, ""},
		{"other's status", write{op: admission.Update, resource: "/pods", sub: "status", ns: "ns", obj: on("n2", "other"), old: on("n2", "other")}, "can only update pod status for pods with spec.nodeName set to itself"},
		{"labels by status", write{op: admission.Update, resource: "/pods", sub: "status", ns: "ns", obj: labelled, old: on("n1", "mine")}, `node "n1" cannot update labels through pod status`},
		{"evict own", write{resource: "/pods", sub: "eviction", ns: "ns", obj: &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}}, ""},
		{"evict other's", write{resource: "/pods", sub: "eviction", ns: "ns", name: "other", obj: &policyv1.Eviction{}}, "node n1 can only evict pods with spec.nodeName set to itself"},
		{"exec", write{resource: "/pods", sub: "exec", ns: "ns", name: "mine"}, `unexpected pod subresource "exec", only 'status' and 'eviction' are allowed`},
		{"register", write{resource: "/nodes", obj: node("n1", label("kubernetes.io/hostname"))}, ""},
		{"register another", write{resource: "/nodes", obj: node("n2", nil)}, `node "n1" is not allowed to modify node "n2"`},
		{"restricted label", write{resource: "/nodes", obj: node("n1", label("node-restriction.kubernetes.io/x"))}, `node "n1" is not allowed to set the following labels: node-restriction.kubernetes.io/x`},
		{"role label", write{resource: "/nodes", obj: node("n1", label("node-role.kubernetes.io/control-plane"))}, "not allowed to set the following labels: node-role.kubernetes.io/control-plane"},
		{"foreign label", write{resource: "/nodes", obj: node("n1", label("example.org/x"))}, ""},
		{"kubelet label", write{resource: "/nodes", obj: node("n1", label("node.kubernetes.io/x"))}, ""},
		{"update own", write{op: admission.Update, resource: "/nodes", sub: "status", obj: node("n1", nil), old: node("n1", nil)}, ""},
		{"update another", write{op: admission.Update, resource: "/nodes", sub: "status", obj: node("n2", nil), old: node("n2", nil)}, "is not allowed to modify node"},
		{"taints", write{op: admission.Update, resource: "/nodes", obj: node("n1", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "x"}} }), old: node("n1", nil)}, "is not allowed to modify taints"},
		{"take label", write{op: admission.Update, resource: "/nodes", obj: node("n1", nil), old: node("n1", label("node-restriction.kubernetes.io/x"))}, "is not allowed to modify labels: node-restriction.kubernetes.io/x"},
		{"token", write{resource: "/serviceaccounts", sub: "token", ns: "ns", name: "sa", obj: token("mine", "")}, ""},
		{"token of none", write{resource: "/serviceaccounts", sub: "token", ns: "ns", name: "sa", obj: token("", "")}, "node requested token not bound to a pod"},
		{"token of an earlier pod", write{resource: "/serviceaccounts", sub: "token", ns: "ns", name: "sa", obj: token("mine", "x")}, "the UID in the bound object reference (other) does not match the UID in record"},
		{"token of other's", write{resource: "/serviceaccounts", sub: "token", ns: "ns", name: "sa", obj: token("other", "")}, "node requested token bound to a pod scheduled on a different node"},
		{"token for the server by name", write{resource: "/serviceaccounts", sub: "token", ns: "ns", name: "sa", obj: token("mine", "", "k8s")}, `system:node:n1 is not authorized to request tokens for audience "k8s"`},
		{"token of a pod that wants none", write{resource: "/serviceaccounts", sub: "token", ns: "ns", name: "sa", obj: token("bare", "")}, `system:node:n1 is not authorized to request tokens for audience ""`},
		{"token for the server, of a pod that wants another", write{resource: "/serviceaccounts", sub: "token", ns: "ns", name: "sa", obj: token("audience", "")}, `system:node:n1 is not authorized to request tokens for audience ""`},
		{"token that is granted", write{resource: "/serviceaccounts", sub: "token", ns: "ns", name: "sa", obj: token("bare", "", "granted")}, ""},
		{"token for a driver", write{resource: "/serviceaccounts", sub: "token", ns: "ns", name: "sa", obj: token("driver", "", "aws")}, ""},
		{"token for a claim's driver", write{resource: "/serviceaccounts", sub: "token", ns: "ns", name: "sa", obj: token("claim", "", "aws")}, ""},
		{"token for what no driver wants", write{resource: "/serviceaccounts", sub: "token", ns: "ns", name: "sa", obj: token("claim", "", "gcp")}, `is not authorized to request tokens for audience "gcp"`},
		{"claim's size", write{op: admission.Update, resource: "/persistentvolumeclaims", sub: "status", ns: "ns", old: claimOf(nil), obj: claimOf(func(s *corev1.PersistentVolumeClaimStatus) {
			s.Capacity = corev1.ResourceList{"storage": resource.MustParse("1Gi")}
		})}, ""},
		{"claim's class", write{op: admission.Update, resource: "/persistentvolumeclaims", sub: "status", ns: "ns", old: claimOf(nil), obj: claimOf(func(s *corev1.PersistentVolumeClaimStatus) {
			s.ModifyVolumeStatus = &corev1.ModifyVolumeStatus{Status: "Pending"}
		})},
			`node "n1" is not allowed to update fields other than status.quantity and status.conditions: `},
		{"token for whom the pod names", write{resource: "/serviceaccounts", sub: "token", ns: "ns", name: "sa", obj: token("audience", "", "vault")}, ""},
		{"token for another", write{resource: "/serviceaccounts", sub: "token", ns: "ns", name: "sa", obj: token("mine", "", "vault")}, `system:node:n1 is not authorized to request tokens for audience "vault"`},
		{"lease", write{resource: "coordination.k8s.io/leases", ns: "kube-node-lease", obj: lease("n1")}, ""},
		{"other's lease", write{resource: "coordination.k8s.io/leases", ns: "kube-node-lease", obj: lease("n2")}, "can only access node lease with the same name as the requesting node"},
		{"lease elsewhere", write{resource: "coordination.k8s.io/leases", ns: "ns", obj: lease("n1")}, `can only access leases in the "kube-node-lease" system namespace`},
		{"CSI node", write{resource: "storage.k8s.io/csinodes", obj: &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}, ""},
		{"other's CSI node", write{resource: "storage.k8s.io/csinodes", obj: &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}}, "can only access CSINode with the same name as the requesting node"},
		{"change of a CSI node", write{op: admission.Update, resource: "storage.k8s.io/csinodes", name: "n1", obj: &storagev1.CSINode{}, old: &storagev1.CSINode{}}, ""},
		{"change of other's CSI node", write{op: admission.Update, resource: "storage.k8s.io/csinodes", name: "n2", obj: &storagev1.CSINode{}, old: &storagev1.CSINode{}}, "can only access CSINode with the same name as the requesting node"},
		{"slice", write{resource: "resource.k8s.io/resourceslices", obj: slice("n1")}, ""},
		{"other's slice", write{resource: "resource.k8s.io/resourceslices", obj: slice("n2")}, "can only create ResourceSlice with the same NodeName as the requesting node"},
		{"slice without a node", write{resource: "resource.k8s.io/resourceslices", obj: &resourcev1.ResourceSlice{}}, "can only create ResourceSlice with the same NodeName as the requesting node"},
		{"delete a slice", write{op: admission.Delete, resource: "resource.k8s.io/resourceslices", name: "s", old: slice("n1")}, ""},
		{"delete other's slice", write{op: admission.Delete, resource: "resource.k8s.io/resourceslices", name: "s", old: slice("n2")}, "can only delete ResourceSlice with the same NodeName as the requesting node"},
		{"own request", write{resource: "certificates.k8s.io/certificatesigningrequests", obj: csr(t, "kubernetes.io/kubelet-serving", "system:node:n1", "system:nodes")}, ""},
		{"own pod's certificate", write{resource: "certificates.k8s.io/podcertificaterequests", ns: "ns", obj: podCertificate("n1", "mine", "uid-1")}, ""},
		{"signer that is granted", write{resource: "certificates.k8s.io/podcertificaterequests", ns: "ns", obj: signer("example.org/granted")}, ""},
		{"signer that the pod does not name", write{resource: "certificates.k8s.io/podcertificaterequests", ns: "ns", obj: signer("example.org/other")}, `pod "ns/mine" does not mount a podCertificate projected volume for signer "example.org/other"`},
		{"another node's", write{resource: "certificates.k8s.io/podcertificaterequests", ns: "ns", obj: podCertificate("n2", "other", "uid-1")}, `PodCertificateRequest.Spec.NodeName="n2", which is not the requesting node "n1"`},
		{"another node's pod's", write{resource: "certificates.k8s.io/podcertificaterequests", ns: "ns", obj: podCertificate("n1", "other", "uid-1")}, `is not running on node "n1" named in the PodCertificateRequest`},
		{"a former pod's", write{resource: "certificates.k8s.io/podcertificaterequests", ns: "ns", obj: podCertificate("n1", "mine", "uid-0")}, "which differs from running pod"},
		{"no pod's", write{resource: "certificates.k8s.io/podcertificaterequests", ns: "ns", obj: podCertificate("n1", "none", "uid-1")}, "while retrieving pod"},
		{"other's request", write{resource: "certificates.k8s.io/certificatesigningrequests", obj: csr(t, "kubernetes.io/kubelet-serving", "system:node:n2", "system:nodes")}, "can only create a node CSR with CN=system:node:n1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.w.user == nil {
				tt.w.user = n1
			}
			wantErr(t, ask(t, c, tt.w), tt.err)
		})
	}
}

func TestCertificates(t *testing.T) {
	may := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		allowed := a.GetUser().GetName() == "exact" && a.GetName() == "example.org/s" || a.GetUser().GetName() == "domain" && a.GetName() == "example.org/*"
		if allowed && a.GetResource() == "signers" && a.GetAPIGroup() == "certificates.k8s.io" {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	})
	c, _ := chain(t, Config{Authorizer: may}, []string{"CertificateApproval", "CertificateSigning", "ClusterTrustBundleAttest", "CertificateSubjectRestriction"})
	r := csr(t, "example.org/s", "x")
	signed := r.DeepCopy()
	signed.Status.Certificate = []byte("x")
	const requests = "certificates.k8s.io/certificatesigningrequests"
	for _, name := range []string{"exact", "domain"} {
		wantErr(t, ask(t, c, write{op: admission.Update, resource: requests, sub: "approval", obj: r, old: r, user: &user.DefaultInfo{Name: name}}), "")
		wantErr(t, ask(t, c, write{op: admission.Update, resource: requests, sub: "status", obj: signed, old: r, user: &user.DefaultInfo{Name: name}}), "")
	}
	wantErr(t, ask(t, c, write{op: admission.Update, resource: requests, sub: "approval", obj: r, old: r}), `user not permitted to approve requests with signerName "example.org/s"`)
	wantErr(t, ask(t, c, write{op: admission.Update, resource: requests, sub: "status", obj: signed, old: r}), `user not permitted to sign requests with signerName "example.org/s"`)
	wantErr(t, ask(t, c, write{op: admission.Update, resource: requests, sub: "status", obj: r, old: r}), "")
	wantErr(t, ask(t, c, write{resource: requests, obj: csr(t, "kubernetes.io/kube-apiserver-client", "x", "system:masters")}), "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed")
	wantErr(t, ask(t, c, write{resource: requests, obj: csr(t, "kubernetes.io/kube-apiserver-client", "x", "devs")}), "")
	asked := &certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Name: "r", Namespace: "ns"}, Spec: certificatesv1.PodCertificateRequestSpec{SignerName: "example.org/s"}}
	answered := asked.DeepCopy()
	answered.Status.CertificateChain = "x"
	for name, refused := range map[string]string{"exact": "", "domain": "", "ann": `spec.signerName: Forbidden: User "ann" is not permitted to "sign" for signer "example.org/s"`} {
		wantErr(t, ask(t, c, write{op: admission.Update, resource: "certificates.k8s.io/podcertificaterequests", sub: "status", ns: "ns", obj: answered, old: asked, user: &user.DefaultInfo{Name: name}}), refused)
	}
	bundle := &certificatesv1.ClusterTrustBundle{Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: "example.org/s"}}
	wantErr(t, ask(t, c, write{resource: "certificates.k8s.io/clustertrustbundles", obj: bundle}), `user not permitted to attest for signerName "example.org/s"`)
	collected := bundle.DeepCopy()
	collected.Finalizers = []string{"a/b"}
	wantErr(t, ask(t, c, write{op: admission.Update, resource: "certificates.k8s.io/clustertrustbundles", obj: collected, old: bundle}), "")
	collected.Labels = map[string]string{"a": "b"}
	wantErr(t, ask(t, c, write{op: admission.Update, resource: "certificates.k8s.io/clustertrustbundles", obj: collected, old: bundle}), `user not permitted to attest for signerName "example.org/s"`)
}

func TestStorage(t *testing.T) {
	yes := true
	class := func(name string, age time.Duration, def bool) *storagev1.StorageClass {
		c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age))}}
		if def {
			c.Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
		}
		return c
	}
	grows := class("grows", 0, false)
	grows.AllowVolumeExpansion = &yes
	ingressClass := &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "nginx", Annotations: map[string]string{"ingressclass.kubernetes.io/is-default-class": "true"}}}
	c, _ := chain(t, Config{}, []string{"DefaultStorageClass", "StorageObjectInUseProtection", "PersistentVolumeClaimResize", "DefaultIngressClass"},
		class("old", time.Hour, true), class("b", 0, true), class("a", 0, true), class("plain", 0, false), grows, ingressClass)
	claim := func(class, size string) *corev1.PersistentVolumeClaim {
		pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}
		pvc.Spec.Resources.Requests = corev1.ResourceList{"storage": resource.MustParse(size)}
		if class != "-" {
			pvc.Spec.StorageClassName = &class
		}
		return pvc
	}
	pvc := claim("-", "1Gi")
	wantErr(t, ask(t, c, write{resource: "/persistentvolumeclaims", obj: pvc}), "")
	if pvc.Spec.StorageClassName == nil || *pvc.Spec.StorageClassName != "a" || len(pvc.Finalizers) != 1 || pvc.Finalizers[0] != "kubernetes.io/pvc-protection" {
		t.Errorf("%+v", pvc)
	}
	pvc = claim("", "1Gi")
	wantErr(t, ask(t, c, write{resource: "/persistentvolumeclaims", obj: pvc}), "")
	if *pvc.Spec.StorageClassName != "" {
		t.Error("a default class was set")
	}
	pv := &corev1.PersistentVolume{}
	wantErr(t, ask(t, c, write{resource: "/persistentvolumes", obj: pv}), "")
	if len(pv.Finalizers) != 1 || pv.Finalizers[0] != "kubernetes.io/pv-protection" {
		t.Errorf("%+v", pv)
	}
	up := func(old, obj *corev1.PersistentVolumeClaim) error {
		return ask(t, c, write{op: admission.Update, resource: "/persistentvolumeclaims", obj: obj, old: old})
	}
	wantErr(t, up(claim("grows", "1Gi"), claim("grows", "2Gi")), "")
	wantErr(t, up(claim("plain", "1Gi"), claim("plain", "2Gi")), "only dynamically provisioned pvc can be resized")
	wantErr(t, up(claim("plain", "2Gi"), claim("plain", "1Gi")), "")
	pending := claim("grows", "1Gi")
	pending.Status.Phase = corev1.ClaimPending
	wantErr(t, up(pending, claim("grows", "2Gi")), "Only bound persistent volume claims can be expanded")

	ing := &networkingv1.Ingress{}
	wantErr(t, ask(t, c, write{resource: "networking.k8s.io/ingresses", obj: ing}), "")
	if ing.Spec.IngressClassName == nil || *ing.Spec.IngressClassName != "nginx" {
		t.Errorf("%+v", ing.Spec)
	}
}
