package compose_test

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/testing/testwait"
)

// privileges are the objects that TestPrivilegeEscalation creates as an administrator: users with few permissions,
// and two nodes with a pod each.
const privileges = `
apiVersion: v1
kind: Namespace
metadata: {name: restricted, labels: {pod-security.kubernetes.io/enforce: restricted}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: default}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: restricted}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: robot, namespace: default}
---
apiVersion: v1
kind: Secret
metadata: {name: treasure, namespace: kube-system}
---
apiVersion: v1
kind: Secret
metadata: {name: of-one, namespace: default}
---
apiVersion: v1
kind: Secret
metadata: {name: of-two, namespace: default}
---
apiVersion: v1
kind: Node
metadata: {name: one}
---
apiVersion: v1
kind: Node
metadata: {name: two}
---
apiVersion: v1
kind: Pod
metadata: {name: on-one, namespace: default}
spec: {nodeName: one, containers: [{name: c, image: i, env: [{name: S, valueFrom: {secretKeyRef: {name: of-one, key: k}}}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: on-two, namespace: default}
spec: {nodeName: two, serviceAccountName: robot, containers: [{name: c, image: i, env: [{name: S, valueFrom: {secretKeyRef: {name: of-two, key: k}}}]}]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: editor}
rules:
- {apiGroups: [rbac.authorization.k8s.io], resources: [roles, clusterroles, rolebindings, clusterrolebindings], verbs: [get, create, update, patch]}
- {apiGroups: [""], resources: [configmaps], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: binder}
rules:
- {apiGroups: [rbac.authorization.k8s.io], resources: [clusterrolebindings], verbs: [create]}
- {apiGroups: [rbac.authorization.k8s.io], resources: [clusterroles], resourceNames: [view], verbs: [bind]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: deputy}
rules:
- {apiGroups: [""], resources: [users], resourceNames: [bob], verbs: [impersonate]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: requester}
rules:
- {apiGroups: [certificates.k8s.io], resources: [certificatesigningrequests], verbs: [create, get]}
- {apiGroups: [certificates.k8s.io], resources: [certificatesigningrequests/approval, certificatesigningrequests/status], verbs: [update, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: operator}
rules:
- {apiGroups: [""], resources: [nodes, nodes/status, nodes/proxy, services, services/proxy, endpoints, pods/proxy], verbs: [get, create, update, patch, delete]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: developer}
rules:
- {apiGroups: [""], resources: [pods, pods/ephemeralcontainers], verbs: [create, get, patch, update]}
- {apiGroups: [apps], resources: [deployments], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: watcher}
rules:
- {apiGroups: [""], resources: [pods, pods/exec, pods/attach, pods/portforward], verbs: [get]}
---
apiVersion: v1
kind: Pod
metadata: {name: on-loopback, namespace: default}
spec: {nodeName: loop4, containers: [{name: c, image: i}]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: executor}
rules:
- {apiGroups: [""], resources: [pods/exec, pods/attach, pods/portforward], verbs: [create, get]}
- {apiGroups: [""], resources: [pods/log], verbs: [get]}
`

// privilegedUsers are the users that have the ClusterRole of the same name.
var privilegedUsers = []string{"editor", "binder", "deputy", "requester", "operator", "developer", "watcher", "executor"}

// attempt is a request that must not give its user more than the user's permissions.
type attempt struct {
	name   string
	user   string
	groups []string
	// token replaces user and groups.
	token string
	// request is "METHOD path".
	request string
	headers map[string]string
	body    string
	status  int
	// text is a part of the response.
	text string
}

// TestPrivilegeEscalation sends requests with which a user tries to get more permissions than the user has, over
// HTTPS with certificates and tokens.
func TestPrivilegeEscalation(t *testing.T) {
	e := start(t)
	admin, err := kubernetes.NewForConfig(e.server.ClientConfig("admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	e.create(privileges)
	for _, name := range privilegedUsers {
		e.create(fmt.Sprintf("{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: %s}, "+
			"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s}, subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: %[1]s}]}", name))
	}

	// Tokens. The robot's permissions are those of all service accounts.
	issued := func(spec authenticationv1.TokenRequestSpec) string {
		t.Helper()
		r, err := admin.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return r.Status.Token
	}
	valid := issued(authenticationv1.TokenRequestSpec{})
	bound := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bound", Namespace: "default"}}
	if bound, err = admin.CoreV1().Secrets("default").Create(t.Context(), bound, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	unbound := issued(authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: "bound", UID: bound.UID}})
	if err := admin.CoreV1().Secrets("default").Delete(t.Context(), "bound", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	claims := tokenClaims(t, valid)
	changed := func(change func(map[string]any)) string {
		c := maps.Clone(claims)
		change(c)
		return e.sign(c)
	}
	self := "POST /apis/authentication.k8s.io/v1/selfsubjectreviews"
	review := `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`

	role := func(extra string) string {
		return `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"mine"` + extra
	}
	binding := func(role string) string {
		return `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"mine-` + role + `"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"` + role + `"},` +
			`"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"editor"}]}`
	}
	csr := func(signer, organization string) string {
		template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "eve", Organization: []string{organization}}}
		request, err := x509.CreateCertificateRequest(rand.Reader, template, e.pki.ServiceAccountKey)
		if err != nil {
			t.Fatal(err)
		}
		block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request})
		return fmt.Sprintf(`{"apiVersion":"certificates.k8s.io/v1","kind":"CertificateSigningRequest","metadata":{"name":"%s"},"spec":{"signerName":"%s","usages":["client auth"],"request":"%s"}}`,
			strings.ToLower(organization[strings.LastIndexByte(organization, ':')+1:]), signer, base64.StdEncoding.EncodeToString(block))
	}
	pod := func(spec string) string {
		return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{` + spec + `"containers":[{"name":"c","image":"i"}]}}`
	}
	node := func(name, address string) string {
		return `{"apiVersion":"v1","kind":"Node","metadata":{"name":"` + name + `"},"status":{"addresses":[{"type":"InternalIP","address":"` + address + `"}],"daemonEndpoints":{"kubeletEndpoint":{"Port":` + e.port() + `}}}}`
	}
	nodes := []string{"system:nodes", "system:authenticated"}
	upgrade := map[string]string{"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": "v4.channel.k8s.io"}
	merge := map[string]string{"Content-Type": "application/merge-patch+json"}
	rbac := "/apis/rbac.authorization.k8s.io/v1/"
	attempts := []attempt{
		// RBAC.
		{name: "grant permissions that the user does not have", user: "editor", request: "POST " + rbac + "clusterroles", body: role(`},"rules":[{"apiGroups":[""],"resources":["secrets"],"verbs":["get"]}]}`), status: 403, text: "attempting to grant RBAC permissions not currently held"},
		{name: "grant everything", user: "editor", request: "POST " + rbac + "clusterroles", body: role(`},"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}]}`), status: 403, text: "not currently held"},
		{name: "grant non-resource URLs", user: "editor", request: "POST " + rbac + "clusterroles", body: role(`},"rules":[{"nonResourceURLs":["/metrics"],"verbs":["get"]}]}`), status: 403, text: "not currently held"},
		{name: "grant the verb escalate", user: "editor", request: "POST " + rbac + "clusterroles", body: role(`},"rules":[{"apiGroups":["rbac.authorization.k8s.io"],"resources":["clusterroles"],"verbs":["escalate"]}]}`), status: 403, text: "not currently held"},
		{name: "extend the user's own role", user: "editor", request: "PATCH " + rbac + "clusterroles/editor", headers: merge, body: `{"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}]}`, status: 403, text: "not currently held"},
		{name: "aggregate other roles", user: "editor", request: "POST " + rbac + "clusterroles", body: role(`},"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"kubernetes.io/bootstrapping":"rbac-defaults"}}]},"rules":[]}`), status: 403, text: "must have cluster-admin privileges to use the aggregationRule"},
		{name: "be aggregated to admin", user: "editor", request: "POST " + rbac + "clusterroles", body: role(`,"labels":{"rbac.authorization.k8s.io/aggregate-to-view":"true"}},"rules":[{"apiGroups":[""],"resources":["secrets"],"verbs":["list"]}]}`), status: 403, text: "not currently held"},
		{name: "bind cluster-admin", user: "editor", request: "POST " + rbac + "clusterrolebindings", body: binding("cluster-admin"), status: 403, text: "not currently held"},
		{name: "bind a role with bind on another", user: "binder", request: "POST " + rbac + "clusterrolebindings", body: binding("cluster-admin"), status: 403, text: "not currently held"},
		{name: "bind the role with bind on it", user: "binder", request: "POST " + rbac + "clusterrolebindings", body: binding("view"), status: 201},
		{name: "grant what the user has", user: "editor", request: "POST " + rbac + "clusterroles", body: role(`},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["get"]}]}`), status: 201},

		// Impersonation.
		{name: "impersonate another user", user: "deputy", request: self, body: review, headers: map[string]string{"Impersonate-User": "admin"}, status: 403, text: "cannot impersonate"},
		{name: "impersonate a group", user: "deputy", request: self, body: review, headers: map[string]string{"Impersonate-User": "bob", "Impersonate-Group": "system:masters"}, status: 403, text: "cannot impersonate"},
		{name: "impersonate a group only", user: "deputy", request: self, body: review, headers: map[string]string{"Impersonate-Group": "system:masters"}, status: 400, text: "without impersonating a user"},
		{name: "impersonate an extra value", user: "deputy", request: self, body: review, headers: map[string]string{"Impersonate-User": "bob", "Impersonate-Extra-Scopes": "all"}, status: 403, text: "cannot impersonate"},
		{name: "impersonate a service account", user: "deputy", request: self, body: review, headers: map[string]string{"Impersonate-User": "system:serviceaccount:kube-system:generic-garbage-collector"}, status: 403, text: "cannot impersonate"},
		{name: "impersonate the allowed user", user: "deputy", request: self, body: review, headers: map[string]string{"Impersonate-User": "bob"}, status: 201, text: `"username":"bob"`},
		{name: "claim to be the front proxy", user: "deputy", request: self, body: review, headers: map[string]string{"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}, status: 201, text: `"username":"deputy"`},
		{name: "be in a group of the certificate only", user: "eve", groups: []string{"system:authenticated"}, request: "GET /api/v1/namespaces/kube-system/secrets/treasure", status: 403},

		// Tokens.
		{name: "a valid token", token: valid, request: self, body: review, status: 201, text: `"username":"system:serviceaccount:default:robot"`},
		{name: "a token for another audience", token: issued(authenticationv1.TokenRequestSpec{Audiences: []string{"vault"}}), request: self, body: review, status: 401},
		{name: "a token bound to a deleted Secret", token: unbound, request: self, body: review, status: 401},
		{name: "an expired token", token: changed(func(c map[string]any) { c["exp"] = time.Now().Add(-time.Hour).Unix() }), request: self, body: review, status: 401},
		{name: "a token of the future", token: changed(func(c map[string]any) { c["nbf"] = time.Now().Add(time.Hour).Unix() }), request: self, body: review, status: 401},
		{name: "a token of another issuer", token: changed(func(c map[string]any) { c["iss"] = "https://evil.example" }), request: self, body: review, status: 401},
		{name: "a token for a service account that does not exist", token: changed(func(c map[string]any) {
			c["sub"] = "system:serviceaccount:kube-system:absent"
			c["kubernetes.io"] = map[string]any{"namespace": "kube-system", "serviceaccount": map[string]any{"name": "absent", "uid": "1"}}
		}), request: self, body: review, status: 401},
		{name: "a token of a previous service account", token: changed(func(c map[string]any) {
			c["kubernetes.io"] = map[string]any{"namespace": "default", "serviceaccount": map[string]any{"name": "robot", "uid": "00000000-0000-4000-8000-000000000000"}}
		}), request: self, body: review, status: 401},
		{name: "a subject that differs from the account", token: changed(func(c map[string]any) { c["sub"] = "system:serviceaccount:kube-system:robot" }), request: self, body: review, status: 401},
		{name: "alg none", token: unsigned(claims, "none", nil), request: self, body: review, status: 401},
		{name: "alg None", token: unsigned(claims, "None", nil), request: self, body: review, status: 401},
		{name: "the public key as a shared secret", token: unsigned(claims, "HS256", publicKey(t, e.pki)), request: self, body: review, status: 401},
		{name: "a signature that is cut off", token: valid[:len(valid)-4], request: self, body: review, status: 401},
		{name: "a changed payload", token: swapPayload(valid, claims), request: self, body: review, status: 401},
		{name: "an empty token", token: " ", request: self, body: review, status: 403, text: "system:anonymous"},
		{name: "a token for another account by a pod's user", user: "developer", request: "POST /api/v1/namespaces/kube-system/serviceaccounts/default/token", body: `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`, status: 403},

		// Nodes.
		{name: "a node reads a Secret of its pod", user: "system:node:one", groups: nodes, request: "GET /api/v1/namespaces/default/secrets/of-one", status: 200},
		{name: "a node reads a Secret of another node's pod", user: "system:node:one", groups: nodes, request: "GET /api/v1/namespaces/default/secrets/of-two", status: 403, text: "no relationship found"},
		{name: "a node lists Secrets", user: "system:node:one", groups: nodes, request: "GET /api/v1/secrets", status: 403},
		{name: "a node gets a token of another node's account", user: "system:node:one", groups: nodes, request: "POST /api/v1/namespaces/default/serviceaccounts/robot/token", body: `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`, status: 403},
		{name: "a node changes another node", user: "system:node:one", groups: nodes, request: "PATCH /api/v1/nodes/two", headers: merge, body: `{"metadata":{"labels":{"a":"b"}}}`, status: 403, text: "is not allowed to modify"},
		{name: "a node changes the status of another node", user: "system:node:one", groups: nodes, request: "PATCH /api/v1/nodes/two/status", headers: merge, body: `{"status":{"phase":"x"}}`, status: 403, text: "is not allowed to modify"},
		{name: "a node sets a protected label", user: "system:node:one", groups: nodes, request: "PATCH /api/v1/nodes/one", headers: merge, body: `{"metadata":{"labels":{"node-restriction.kubernetes.io/x":"y"}}}`, status: 403, text: "is not allowed to modify labels"},
		{name: "a node removes its taints", user: "system:node:one", groups: nodes, request: "PATCH /api/v1/nodes/one", headers: merge, body: `{"spec":{"taints":[{"key":"a","effect":"NoSchedule"}]}}`, status: 403, text: "is not allowed to modify taints"},
		{name: "a node deletes another node's pod", user: "system:node:one", groups: nodes, request: "DELETE /api/v1/namespaces/default/pods/on-two", status: 403, text: "can only delete pods with spec.nodeName set to itself"},
		{name: "a node evicts another node's pod", user: "system:node:one", groups: nodes, request: "POST /api/v1/namespaces/default/pods/on-two/eviction", body: `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"on-two"}}`, status: 403},
		{name: "a node creates a pod", user: "system:node:one", groups: nodes, request: "POST /api/v1/namespaces/default/pods", body: pod(`"nodeName":"one",`), status: 403, text: "can only create mirror pods"},
		{name: "a node creates a mirror pod with a service account", user: "system:node:one", groups: nodes, request: "POST /api/v1/namespaces/default/pods", body: strings.Replace(pod(`"nodeName":"one","serviceAccountName":"robot",`), `"name":"p"`, `"name":"p","annotations":{"kubernetes.io/config.mirror":"x"}`, 1), status: 403},
		{name: "a node renews another node's lease", user: "system:node:one", groups: nodes, request: "PATCH /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/two", headers: merge, body: `{"spec":{"holderIdentity":"one"}}`, status: 403},
		{name: "a node without the group", user: "system:node:one", request: "GET /api/v1/namespaces/default/secrets/of-one", status: 403},
		{name: "a node reads the configuration of the cluster", user: "system:node:one", groups: nodes, request: "GET /api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication", status: 403},

		// Certificates.
		{name: "request a certificate of system:masters", user: "requester", request: "POST /apis/certificates.k8s.io/v1/certificatesigningrequests", body: csr("kubernetes.io/kube-apiserver-client", "system:masters"), status: 403, text: "system:masters"},
		{name: "request another certificate", user: "requester", request: "POST /apis/certificates.k8s.io/v1/certificatesigningrequests", body: csr("kubernetes.io/kube-apiserver-client", "developers"), status: 201},
		{name: "approve without permission for the signer", user: "requester", request: "PATCH /apis/certificates.k8s.io/v1/certificatesigningrequests/developers/approval", headers: merge, body: `{"status":{"conditions":[{"type":"Approved","status":"True","reason":"me"}]}}`, status: 403, text: "approve"},
		{name: "sign without permission for the signer", user: "requester", request: "PATCH /apis/certificates.k8s.io/v1/certificatesigningrequests/developers/status", headers: merge, body: `{"status":{"certificate":"` + base64.StdEncoding.EncodeToString(e.pki.CA.CertPEM) + `"}}`, status: 403, text: "sign"},

		// Pods.
		{name: "a privileged pod in a restricted namespace", user: "developer", request: "POST /api/v1/namespaces/restricted/pods", body: strings.Replace(pod(""), `"image":"i"`, `"image":"i","securityContext":{"privileged":true}`, 1), status: 403, text: "violates PodSecurity"},
		{name: "a hostPath in a restricted namespace", user: "developer", request: "POST /api/v1/namespaces/restricted/pods", body: pod(`"volumes":[{"name":"v","hostPath":{"path":"/"}}],`), status: 403, text: "violates PodSecurity"},
		{name: "the host's network in a restricted namespace", user: "developer", request: "POST /api/v1/namespaces/restricted/pods", body: pod(`"hostNetwork":true,`), status: 403, text: "violates PodSecurity"},
		{name: "a subPath out of the volume", user: "developer", request: "POST /api/v1/namespaces/default/pods", body: strings.Replace(pod(`"volumes":[{"name":"v","emptyDir":{}}],`), `"image":"i"`, `"image":"i","volumeMounts":[{"name":"v","mountPath":"/x","subPath":"../../etc"}]`, 1), status: 422, text: "must not contain '..'"},
		{name: "exec with get only", user: "watcher", request: "GET /api/v1/namespaces/default/pods/on-one/exec?command=id&stdout=1", headers: map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Protocol": "v5.channel.k8s.io"}, status: 403, text: "cannot create resource"},
		{name: "exec without permission", user: "developer", request: "POST /api/v1/namespaces/default/pods/on-one/exec?command=id&stdout=1", status: 403},
		{name: "attach without permission", user: "developer", request: "POST /api/v1/namespaces/default/pods/on-one/attach?stdout=1", status: 403},

		// Proxies to the API server itself and to the metadata of clouds.
		{name: "a node on loopback", user: "operator", request: "POST /api/v1/nodes", body: node("loop4", "127.0.0.1"), status: 201},
		{name: "the proxy of a node on loopback", user: "operator", request: "GET /api/v1/nodes/loop4/proxy/api/v1/secrets", status: 503, text: "address not allowed"},
		{name: "the proxy of a node on loopback with another port", user: "operator", request: "GET /api/v1/nodes/https:loop4:" + e.port() + "/proxy/api/v1/secrets", status: 503, text: "address not allowed"},
		{name: "exec in a pod of a node on loopback", user: "executor", request: "POST /api/v1/namespaces/default/pods/on-loopback/exec?command=id&stdout=1", headers: upgrade, status: 500, text: "address not allowed"},
		{name: "attach to a pod of a node on loopback", user: "executor", request: "POST /api/v1/namespaces/default/pods/on-loopback/attach?stdout=1", headers: upgrade, status: 500, text: "address not allowed"},
		{name: "port-forward to a pod of a node on loopback", user: "executor", request: "POST /api/v1/namespaces/default/pods/on-loopback/portforward?ports=80", headers: upgrade, status: 500, text: "address not allowed"},
		{name: "the log of a pod of a node on loopback", user: "executor", request: "GET /api/v1/namespaces/default/pods/on-loopback/log", status: 500, text: "address not allowed"},
		{name: "exec leads to no other resource of the node", user: "executor", request: "POST /api/v1/namespaces/default/pods/on-one/exec/../../../../nodes/loop4/proxy/?command=id", headers: upgrade, status: 404},
		{name: "a node on IPv6 loopback", user: "operator", request: "POST /api/v1/nodes", body: node("loop6", "::1"), status: 201},
		{name: "the proxy of a node on IPv6 loopback", user: "operator", request: "GET /api/v1/nodes/loop6/proxy/", status: 503, text: "address not allowed"},
		{name: "a node on a mapped address", user: "operator", request: "POST /api/v1/nodes", body: node("mapped", "::ffff:127.0.0.1"), status: 201},
		{name: "the proxy of a node on a mapped address", user: "operator", request: "GET /api/v1/nodes/mapped/proxy/", status: 503, text: "address not allowed"},
		{name: "a node at the metadata service", user: "operator", request: "POST /api/v1/nodes", body: node("meta", "169.254.169.254"), status: 201},
		{name: "the proxy of a node at the metadata service", user: "operator", request: "GET /api/v1/nodes/meta/proxy/", status: 503, text: "address not allowed"},
		{name: "a node called localhost", user: "operator", request: "POST /api/v1/nodes", body: node("named", "localhost"), status: 201},
		{name: "the proxy of a node called localhost", user: "operator", request: "GET /api/v1/nodes/named/proxy/", status: 503, text: "address not allowed"},
		{name: "endpoints on loopback", user: "operator", request: "POST /apis/discovery.k8s.io/v1/namespaces/default/endpointslices", body: `{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"x"},"addressType":"IPv4","endpoints":[{"addresses":["127.0.0.1"]}]}`, status: 422, text: "may not be in the loopback range"},
		{name: "endpoints at the metadata service", user: "operator", request: "POST /apis/discovery.k8s.io/v1/namespaces/default/endpointslices", body: `{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"x"},"addressType":"IPv4","endpoints":[{"addresses":["169.254.169.254"]}]}`, status: 422, text: "may not be in the link-local range"},

		// Anonymous users.
		{name: "anonymous users read no Secrets", token: "-", request: "GET /api/v1/secrets", status: 403, text: "system:anonymous"},
		{name: "anonymous users read no pods", token: "-", request: "GET /api/v1/pods", status: 403, text: "system:anonymous"},
		{name: "anonymous users get no metrics", token: "-", request: "GET /metrics", status: 403},
		{name: "anonymous users get no profiles", token: "-", request: "GET /debug/pprof/heap", status: 403},
		{name: "anonymous users read the health", token: "-", request: "GET /livez", status: 200},
	}
	// Permissions take effect when the API server has observed them.
	for _, name := range privilegedUsers {
		testwait.Succeed(t, "permissions of "+name, func() error {
			status, text := e.send(&attempt{user: name, request: "GET /apis/rbac.authorization.k8s.io/v1/clusterroles/" + name})
			if want := map[bool]int{true: 200, false: 403}[name == "editor"]; status != want {
				return fmt.Errorf("%d: %s", status, text)
			}
			return nil
		})
	}
	testwait.Succeed(t, "relationships of node one", func() error {
		if status, text := e.send(&attempt{user: "system:node:one", groups: nodes, request: "GET /api/v1/namespaces/default/secrets/of-one"}); status != 200 {
			return fmt.Errorf("%d: %s", status, text)
		}
		return nil
	})
	for i := range attempts {
		a := &attempts[i]
		if status, text := e.send(a); status != a.status || !strings.Contains(text, a.text) {
			t.Errorf("%s: %s as %q: %d, want %d %q:\n%.400s", a.name, a.request, a.user, status, a.status, a.text, text)
		}
	}
}

// port returns the port of the API server.
func (e *env) port() string { return e.url[strings.LastIndexByte(e.url, ':')+1:] }

// create creates the objects of a YAML stream as an administrator.
func (e *env) create(manifests string) {
	e.Helper()
	for manifest := range strings.SplitSeq(manifests, "\n---\n") {
		var object struct {
			APIVersion, Kind string
			Metadata         metav1.ObjectMeta
		}
		if err := yaml.Unmarshal([]byte(manifest), &object); err != nil {
			e.Fatal(err)
		}
		path := "/api/v1/"
		if object.APIVersion != "v1" {
			path = "/apis/" + object.APIVersion + "/"
		}
		if object.Metadata.Namespace != "" {
			path += "namespaces/" + object.Metadata.Namespace + "/"
		}
		a := attempt{user: "admin", groups: []string{"system:masters"}, request: "POST " + path + strings.ToLower(object.Kind) + "s", headers: map[string]string{"Content-Type": "application/yaml"}, body: manifest}
		if status, text := e.send(&a); status != 201 {
			e.Fatalf("creating %s %s: %d %s", object.Kind, object.Metadata.Name, status, text)
		}
	}
}

// send sends the request of an attempt and returns the status and the response.
func (e *env) send(a *attempt) (int, string) {
	e.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(e.pki.CA.Cert)
	config := &tls.Config{RootCAs: pool}
	if a.token == "" {
		pair, err := e.pki.CA.NewPair(pki.Client(a.user, a.groups...))
		if err != nil {
			e.Fatal(err)
		}
		config.Certificates = []tls.Certificate{pair.TLS()}
	}
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	method, path, _ := strings.Cut(a.request, " ")
	req, err := http.NewRequestWithContext(e.Context(), method, e.url+path, strings.NewReader(a.body))
	if err != nil {
		e.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for name, value := range a.headers {
		req.Header.Set(name, value)
	}
	if a.token != "" && a.token != "-" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		e.Fatalf("%s: %v", a.name, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		e.Fatalf("%s: %v", a.name, err)
	}
	return resp.StatusCode, string(text)
}

// tokenClaims returns the claims of a token.
func tokenClaims(t *testing.T, token string) map[string]any {
	t.Helper()
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims map[string]any
	if err := json.Unmarshal(payload, &claims); err != nil {
		t.Fatal(err)
	}
	return claims
}

// sign returns a token with the claims, signed with the cluster's key.
func (e *env) sign(claims map[string]any) string {
	e.Helper()
	payload, err := json.Marshal(claims)
	if err != nil {
		e.Fatal(err)
	}
	for _, alg := range []jose.SignatureAlgorithm{jose.RS256, jose.ES256} {
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: e.pki.ServiceAccountKey}, nil)
		if err != nil {
			continue
		}
		signed, err := signer.Sign(payload)
		if err != nil {
			continue
		}
		text, err := signed.CompactSerialize()
		if err != nil {
			e.Fatal(err)
		}
		return text
	}
	e.Fatal("the key of service account tokens is of an unknown type")
	return ""
}

// unsigned returns a token with another algorithm: without a signature, or with an HMAC.
func unsigned(claims map[string]any, alg string, secret []byte) string {
	part := func(v any) string {
		data, _ := json.Marshal(v)
		return base64.RawURLEncoding.EncodeToString(data)
	}
	text := part(map[string]string{"alg": alg, "typ": "JWT"}) + "." + part(claims)
	signature := ""
	if secret != nil {
		h := hmac.New(sha256.New, secret)
		h.Write([]byte(text))
		signature = base64.RawURLEncoding.EncodeToString(h.Sum(nil))
	}
	return text + "." + signature
}

// swapPayload returns the token with other claims and the same signature.
func swapPayload(token string, claims map[string]any) string {
	changed := maps.Clone(claims)
	changed["sub"] = "system:serviceaccount:kube-system:default"
	data, _ := json.Marshal(changed)
	parts := strings.Split(token, ".")
	parts[1] = base64.RawURLEncoding.EncodeToString(data)
	return strings.Join(parts, ".")
}

// publicKey returns the file with the public key of service account tokens.
func publicKey(t *testing.T, set *pki.Set) []byte {
	t.Helper()
	data, err := os.ReadFile(set.ServiceAccountPubFile)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
