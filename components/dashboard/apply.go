package dashboard

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"
)

// fieldManager is the name with which the API server records changes of the dashboard.
const fieldManager = "hyperkube-dashboard"

// maxManifest is the size of the manifests of a request in bytes.
const maxManifest = 8 << 20

// applyRequest is a request to create or change the objects of a manifest.
type applyRequest struct {
	// Manifest is YAML or JSON, with any number of documents.
	Manifest string `json:"manifest"`
	// Namespace is the namespace of objects without one.
	Namespace string `json:"namespace"`
	// DryRun means that the API server only checks the objects.
	DryRun bool `json:"dryRun"`
	// Force takes over fields that other managers own. Otherwise they cause a conflict.
	Force bool `json:"force"`
	// Replace replaces the objects instead of applying the fields in the manifest. It removes fields that the manifest
	// does not contain, and fails if an object has changed since its resource version.
	Replace bool `json:"replace"`
}

// applyResult is the result for one object.
type applyResult struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	// Before and After are the object as YAML before and after the change. Before is empty if the object did not exist.
	Before string `json:"before"`
	After  string `json:"after"`
	Error  string `json:"error,omitempty"`
	// Conflict means that other managers own fields, and that Force helps.
	Conflict bool `json:"conflict,omitempty"`
}

// apply applies the objects of a manifest, one after the other, and responds with the result for each object.
func apply(w http.ResponseWriter, r *http.Request, one *session) {
	var req applyRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxManifest)).Decode(&req); err != nil {
		http.Error(w, "reading the request: "+err.Error(), http.StatusBadRequest)
		return
	}
	objects, err := parseManifest(req.Manifest)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a, err := newApplier(one.upstream, req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	results := make([]applyResult, 0, len(objects))
	for _, obj := range objects {
		results = append(results, a.apply(r.Context(), obj))
	}
	respond(w, results)
}

// parseManifest returns the objects of all documents of a manifest, and the items of lists.
func parseManifest(manifest string) ([]*unstructured.Unstructured, error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewBufferString(manifest)))
	var objects []*unstructured.Unstructured
	for n := 1; ; n++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading document %d: %w", n, err)
		}
		obj := &unstructured.Unstructured{}
		// The strict parser reports duplicate fields.
		if err := yaml.UnmarshalStrict(document, &obj.Object); err != nil {
			return nil, fmt.Errorf("document %d is not valid YAML: %w", n, err)
		}
		if len(obj.Object) == 0 {
			continue // only comments
		}
		if obj.IsList() {
			err = obj.EachListItem(func(item runtime.Object) error {
				objects = append(objects, item.(*unstructured.Unstructured))
				return nil
			})
			if err != nil {
				return nil, fmt.Errorf("reading document %d: %w", n, err)
			}
			continue
		}
		if obj.GetAPIVersion() == "" || obj.GetKind() == "" {
			return nil, fmt.Errorf("document %d has no apiVersion or kind", n)
		}
		objects = append(objects, obj)
	}
	if len(objects) == 0 {
		return nil, errors.New("the manifest contains no object")
	}
	return objects, nil
}

// applier applies objects as one user.
type applier struct {
	client dynamic.Interface
	mapper meta.ResettableRESTMapper
	req    applyRequest
}

func newApplier(up *upstream, req applyRequest) (*applier, error) {
	client, err := dynamic.NewForConfigAndClient(up.rest, up.client)
	if err != nil {
		return nil, fmt.Errorf("creating the API client: %w", err)
	}
	disc, err := discovery.NewDiscoveryClientForConfigAndClient(up.rest, up.client)
	if err != nil {
		return nil, fmt.Errorf("creating the API client: %w", err)
	}
	return &applier{client: client, mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disc)), req: req}, nil
}

// apply applies one object.
func (a *applier) apply(ctx context.Context, obj *unstructured.Unstructured) applyResult {
	result := applyResult{APIVersion: obj.GetAPIVersion(), Kind: obj.GetKind(), Namespace: obj.GetNamespace(), Name: obj.GetName()}
	fail := func(err error) applyResult {
		result.Error = err.Error()
		result.Conflict = apierrors.IsConflict(err) && !a.req.Replace
		return result
	}
	resource, err := a.resource(obj)
	if err != nil {
		return fail(err)
	}
	result.Namespace = obj.GetNamespace()
	before, err := resource.Get(ctx, obj.GetName(), metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return fail(err)
	}
	if err == nil {
		result.Before = text(before)
	}
	after, err := a.write(ctx, resource, obj)
	if err != nil {
		return fail(err)
	}
	result.After = text(after)
	return result
}

// resource returns the client for the resource of obj. It sets the namespace of obj if it has none and needs one.
func (a *applier) resource(obj *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	gvk := obj.GroupVersionKind()
	mapping, err := a.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, fmt.Errorf("finding the resource of %s: %w", gvk, err)
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return a.client.Resource(mapping.Resource), nil
	}
	if obj.GetNamespace() == "" {
		obj.SetNamespace(a.req.Namespace)
	}
	if obj.GetNamespace() == "" {
		obj.SetNamespace(metav1.NamespaceDefault)
	}
	return a.client.Resource(mapping.Resource).Namespace(obj.GetNamespace()), nil
}

// write creates or changes obj, and returns it as the API server has stored it, or would store it.
func (a *applier) write(ctx context.Context, resource dynamic.ResourceInterface, obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	var dryRun []string
	if a.req.DryRun {
		dryRun = []string{metav1.DryRunAll}
	}
	switch {
	case a.req.Replace:
		return resource.Update(ctx, obj, metav1.UpdateOptions{DryRun: dryRun, FieldManager: fieldManager, FieldValidation: metav1.FieldValidationStrict})
	case obj.GetName() == "" && obj.GetGenerateName() != "":
		return resource.Create(ctx, obj, metav1.CreateOptions{DryRun: dryRun, FieldManager: fieldManager, FieldValidation: metav1.FieldValidationStrict})
	case obj.GetName() == "":
		return nil, errors.New("the object has no name")
	}
	data, err := obj.MarshalJSON()
	if err != nil {
		return nil, err
	}
	return resource.Patch(ctx, obj.GetName(), types.ApplyPatchType, data, metav1.PatchOptions{
		DryRun: dryRun, FieldManager: fieldManager, Force: &a.req.Force, FieldValidation: metav1.FieldValidationStrict,
	})
}

// text returns an object as YAML, without the record of field managers.
func text(obj *unstructured.Unstructured) string {
	obj = obj.DeepCopy()
	obj.SetManagedFields(nil)
	data, err := yaml.Marshal(obj.Object)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// showYAML responds with an object as YAML, without the record of field managers. The parameter path is its path in the API.
func showYAML(w http.ResponseWriter, r *http.Request, one *session) {
	at := r.URL.Query().Get("path")
	if !strings.HasPrefix(at, "/api/") && !strings.HasPrefix(at, "/apis/") || path.Clean(at) != at {
		http.Error(w, "the parameter path is not the path of an object", http.StatusBadRequest)
		return
	}
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, one.upstream.url.JoinPath(at).String(), nil)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	req.Header.Set("Accept", "application/json")
	resp, err := one.upstream.client.Do(req)
	if err != nil {
		http.Error(w, "the API server cannot be reached: "+err.Error(), http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		http.Error(w, "reading the object: "+err.Error(), http.StatusBadGateway)
		return
	}
	if resp.StatusCode != http.StatusOK {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(resp.StatusCode)
		_, _ = w.Write(data) // the Status of the API server; an error means that the client has closed the connection
		return
	}
	obj := &unstructured.Unstructured{}
	if err := json.Unmarshal(data, &obj.Object); err != nil {
		http.Error(w, "reading the object: "+err.Error(), http.StatusBadGateway)
		return
	}
	respond(w, map[string]string{"yaml": text(obj)})
}
