package customresource

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	"hyperkube/internal/api"
)

// hasStatus reports whether the version has a status subresource.
func (v *kindVersion) hasStatus() bool { return v.Subresources != nil && v.Subresources.Status != nil }

// prepareCreate prepares a new object before validation: it removes the status if there is a status
// subresource, and sets the generation to 1.
func (v *kindVersion) prepareCreate(_ context.Context, o api.Object) {
	obj := unstructuredOf(o)
	if v.hasStatus() {
		delete(obj.Object, "status")
	}
	obj.SetGeneration(1)
}

// prepareUpdate prepares a changed object before validation. If there is a status subresource, it
// restores the status of before. It increments the generation if anything except the metadata has
// changed.
func (v *kindVersion) prepareUpdate(_ context.Context, o, before api.Object) {
	obj, old := unstructuredOf(o), unstructuredOf(before)
	if v.hasStatus() {
		if status, ok := old.Object["status"]; ok {
			obj.Object["status"] = runtime.DeepCopyJSONValue(status)
		} else {
			delete(obj.Object, "status")
		}
	}
	if !equality.Semantic.DeepEqual(withoutMetadata(obj.Object), withoutMetadata(old.Object)) {
		obj.SetGeneration(old.GetGeneration() + 1)
	}
}

// withoutMetadata returns a shallow copy of an object's content without metadata.
func withoutMetadata(content map[string]any) map[string]any {
	out := make(map[string]any, len(content))
	for name, value := range content {
		if name != "metadata" {
			out[name] = value
		}
	}
	return out
}

// prepareStatus prepares an object that was written through the status subresource: it restores
// everything from before except the status and the managed fields.
func prepareStatus(_ context.Context, o, before api.Object) {
	obj := unstructuredOf(o)
	status, ok := obj.Object["status"]
	managed := obj.GetManagedFields()
	obj.Object = unstructuredOf(before).DeepCopy().Object
	obj.SetManagedFields(managed)
	if ok {
		obj.Object["status"] = status
	} else {
		delete(obj.Object, "status")
	}
}

// ownFinalizers are Kubernetes' own finalizers without a domain, for which clients get no warning.
var ownFinalizers = []string{metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents, string(corev1.FinalizerKubernetes)}

// warnings returns warnings for the client about finalizers that obj has in addition to old and
// whose names are not domain-qualified. old is nil if obj is new.
func (v *kindVersion) warnings(_ context.Context, obj, old api.Object) []string {
	added := slices.Clone(obj.GetFinalizers())
	if old != nil {
		added = slices.DeleteFunc(added, func(f string) bool { return slices.Contains(old.GetFinalizers(), f) })
	}
	slices.Sort(added)
	var out []string
	for _, f := range slices.Compact(added) {
		warn := func(text string) { out = append(out, fmt.Sprintf("metadata.finalizers: %q: %s", f, text)) }
		for _, msg := range validation.IsQualifiedName(f) {
			warn(msg)
		}
		switch {
		case strings.Contains(f, "/") || slices.Contains(ownFinalizers, f):
		case strings.Contains(f, "."):
			warn("prefer a domain-qualified finalizer name including a path (/) to avoid accidental conflicts with other finalizer writers")
		default:
			warn("prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers")
		}
	}
	return out
}
