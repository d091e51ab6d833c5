package compose_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	clientrest "k8s.io/client-go/rest"

	clientv3 "go.etcd.io/etcd/client/v3"

	"hyperkube/internal/api"
	"hyperkube/internal/api/catalog"
)

// garbage returns values that cannot be decoded, for different reasons.
func garbage(t *testing.T) map[string]string {
	t.Helper()
	envelope := func(version, kind string, raw []byte) string {
		data, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: version, Kind: kind}, Raw: raw}).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return "k8s\x00" + string(data)
	}
	return map[string]string{
		"nothing":   "",
		"magic":     "k8s\x00",
		"binary":    "\x00\xff\xfe\x80garbage",
		"cut":       `{"kind":"Pod","apiVersion":"v1","metadata":{"na`,
		"list":      "[]",
		"null":      "null",
		"deep":      strings.Repeat(`{"a":`, 100_000),
		"truncated": "k8s\x00\n\x09\n\x02v1\x12\x03Pod\x12\xff\xff\xff\xff\x0f",
		"raw":       envelope("v1", "Pod", []byte("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f")),
		"other":     envelope("example.org/v9", "Strange", []byte("x")),
		"encrypted": "k8s:enc:aescbc:v1:key1:0123456789abcdef",
	}
}

// TestUndecodableObjects checks that a server whose etcd contains undecodable objects starts,
// serves the other objects, identifies the undecodable ones in errors, and deletes them with the
// unsafe deletion option.
func TestUndecodableObjects(t *testing.T) {
	values := garbage(t)
	keyOf := func(r *api.Resource, name string) string {
		return path.Join("/registry", r.StoragePath, r.Key("default", name))
	}
	// Some resources share their storage with another.
	var resources []*api.Resource
	seen := map[string]bool{}
	for _, r := range catalog.Resources() {
		if !r.Review && slices.Contains(r.Verbs, "delete") && !seen[r.StoragePath] {
			seen[r.StoragePath] = true
			resources = append(resources, r)
		}
	}
	e := startOn(t, func(client *clientv3.Client) {
		for _, r := range resources {
			var puts []clientv3.Op
			for name, value := range values {
				puts = append(puts, clientv3.OpPut(keyOf(r, name), value))
			}
			if _, err := client.Txn(context.Background()).Then(puts...).Commit(); err != nil {
				t.Fatal(err)
			}
		}
	})
	config := as(t, e.conf, "")
	client, err := clientrest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(method, url, accept, contentType, body string) (int, string) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, method, config.Host+url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", accept)
		req.Header.Set("Content-Type", contentType)
		resp, err := client.Do(req)
		if err != nil {
			t.Errorf("%s %s: %v", method, url, err)
			return 0, ""
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Errorf("%s %s: %v", method, url, err)
		}
		if bytes.Contains(data, []byte("caused apiserver to panic")) {
			t.Errorf("%s %s panicked", method, url)
		}
		return resp.StatusCode, string(data)
	}
	kube := kubernetes.NewForConfigOrDie(config)
	if _, err := kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "works"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("creating a namespace: %v", err)
	}
	if _, err := kube.CoreV1().ConfigMaps("works").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "works"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("creating a config map: %v", err)
	}
	const table = "application/json;as=Table;g=meta.k8s.io;v=v1"
	for _, r := range resources {
		base := "/apis/" + r.Group + "/" + r.Version
		if r.Group == "" {
			base = "/api/v1"
		}
		all := base + "/" + r.Plural
		if bool(r.Scope) {
			base += "/namespaces/default"
		}
		base += "/" + r.Plural
		for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf, application/json", table, "application/yaml", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"} {
			code, body := ask(http.MethodGet, all, accept, "", "")
			if code != http.StatusInternalServerError && code != http.StatusNotFound && code != http.StatusMethodNotAllowed {
				t.Errorf("list of %s as %s: %d", all, accept, code)
			}
			var status metav1.Status
			if accept == "application/json" && code == http.StatusInternalServerError {
				if err := json.Unmarshal([]byte(body), &status); err != nil || status.Reason != metav1.StatusReasonStoreReadError || len(status.Details.Causes) < len(values)-2 {
					t.Errorf("list of %s: %s", all, body)
				}
			}
		}
		// The first event is an error about an undecodable object.
		ask(http.MethodGet, all+"?watch=1&timeoutSeconds=5", "application/json", "", "")
		for name := range values {
			object := base + "/" + name
			code, body := ask(http.MethodGet, object, "application/json", "", "")
			what := "object not decodable revision="
			if name == "encrypted" {
				what = "data from the storage is not transformable revision=0: identity transformer tried to read encrypted data"
			}
			if code == http.StatusInternalServerError && !strings.Contains(body, "Internal error occurred: StorageError: corrupt object, Code: 7, Key: "+strings.TrimPrefix(keyOf(r, name), "/registry")+", ResourceVersion: 0, AdditionalErrorMsg: "+what) {
				t.Errorf("%s: %s", object, body)
			}
			ask(http.MethodPatch, object, "application/json", "application/merge-patch+json", `{"metadata":{"labels":{"a":"b"}}}`)
			ask(http.MethodPatch, object+"?fieldManager=x", "application/json", "application/apply-patch+yaml", fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q}}`, r.GVK().GroupVersion(), r.Kind, name))
			ask(http.MethodPut, object, "application/json", "application/json", fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q}}`, r.GVK().GroupVersion(), r.Kind, name))
			ask(http.MethodDelete, object, "application/json", "application/json", "")
			const insist = "?ignoreStoreReadErrorWithClusterBreakingPotential=true"
			if name != "cut" {
				continue
			}
			if code, body := ask(http.MethodDelete, object+insist+"&dryRun=All", "application/json", "application/json", ""); code != http.StatusOK {
				t.Errorf("trying to delete %s: %d %s", object, code, body)
			}
			if code, body := ask(http.MethodDelete, object+insist, "application/json", "application/json", ""); code != http.StatusOK {
				t.Errorf("deleting %s: %d %s", object, code, body)
			}
			if code, _ := ask(http.MethodGet, object, "application/json", "", ""); code != http.StatusNotFound {
				t.Errorf("%s after its end: %d", object, code)
			}
		}
	}
	if code, body := ask(http.MethodDelete, "/api/v1/namespaces/works/configmaps/works?ignoreStoreReadErrorWithClusterBreakingPotential=true", "application/json", "", ""); code != http.StatusConflict || !strings.Contains(body, "unsafe deletion is not allowed because the object is decodable from storage") {
		t.Errorf("unsafe deletion of a valid object: %d %s", code, body)
	}
	if code, _ := ask(http.MethodDelete, "/api/v1/namespaces/works/configmaps?ignoreStoreReadErrorWithClusterBreakingPotential=true", "application/json", "", ""); code != http.StatusUnprocessableEntity {
		t.Errorf("unsafe deletion of a collection: %d", code)
	}
}

// TestUndecodableInitialObjects checks that a server starts although the initial cluster objects in
// etcd are undecodable, and that it creates them again after they are deleted.
func TestUndecodableInitialObjects(t *testing.T) {
	damaged := []string{
		"servicecidrs/kubernetes", "ipaddresses/10.96.0.1", "services/specs/default/kubernetes", "services/endpoints/default/kubernetes", "endpointslices/default/kubernetes",
		"clusterroles/cluster-admin", "clusterrolebindings/system:node", "roles/kube-system/system:controller:token-cleaner",
		"flowschemas/exempt", "flowschemas/global-default", "prioritylevelconfigurations/exempt", "prioritylevelconfigurations/system",
		"priorityclasses/system-node-critical", "configmaps/kube-system/extension-apiserver-authentication",
	}
	e := startOn(t, func(client *clientv3.Client) {
		for _, key := range damaged {
			if _, err := client.Put(context.Background(), "/registry/"+key, "k8s\x00\n\xff\xff"); err != nil {
				t.Fatal(err)
			}
		}
	})
	kube := kubernetes.NewForConfigOrDie(as(t, e.conf, ""))
	if _, err := kube.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}); !apierrors.IsInternalError(err) {
		t.Errorf("the damaged service: %v", err)
	}
	insist := true
	if err := kube.CoreV1().Endpoints("default").Delete(t.Context(), "kubernetes", metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: &insist}); err != nil {
		t.Errorf("deleting damaged endpoints: %v", err)
	}
	if _, err := kube.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "works"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("creating a config map: %v", err)
	}
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := kube.CoreV1().Endpoints("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		return err == nil, nil
	}); err != nil {
		t.Errorf("deleted endpoints were not restored: %v", err)
	}
}
