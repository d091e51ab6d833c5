package storageversionmigrator

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/discovery"
)

const (
	// page is the maximum number of objects that one list request of a migration returns.
	page = 500
	// absentNamespace is a namespace that does not exist. Listing a resource in it is cheap and returns the
	// current resource version.
	absentNamespace = "fake-storage-version-migration"
)

// verbs are the verbs that a resource must support to be migrated.
var verbs = []string{"update", "patch", "list"}

// resource is a resource as discovery describes it. gvr is empty if the resource is not served. migratable is true if
// it supports all of verbs.
type resource struct {
	gvr        schema.GroupVersionResource
	kind       schema.GroupVersionKind
	namespaced bool
	migratable bool
}

// resource returns what discovery contains about want, in the API server's preferred version. The gvr of the result is
// empty if want is not served.
func (c *Controller) resource(ctx context.Context, want schema.GroupResource) (resource, error) {
	lists, err := c.cfg.Discovery.ServerPreferredResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return resource{}, fmt.Errorf("discovering %s: %w", want, err)
	}
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil || gv.Group != want.Group {
			continue
		}
		for _, x := range l.APIResources {
			if x.Name == want.Resource {
				lacks := func(verb string) bool { return !slices.Contains(x.Verbs, verb) }
				return resource{gvr: gv.WithResource(x.Name), kind: gv.WithKind(x.Kind), namespaced: x.Namespaced, migratable: !slices.ContainsFunc(verbs, lacks)}, nil
			}
		}
	}
	return resource{}, ctx.Err()
}

// revision returns the current resource version of the list of a resource. The migration rewrites only objects that
// are not newer.
func (c *Controller) revision(ctx context.Context, r resource) (string, error) {
	namespace := ""
	if r.namespaced {
		namespace = absentNamespace
	}
	list, err := c.cfg.Metadata.Resource(r.gvr).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return "", fmt.Errorf("getting resource version of %s: %w", r.gvr.GroupResource(), err)
	}
	return list.ResourceVersion, nil
}

// rewrite makes the API server rewrite each object of a resource whose resource version is not newer than until. It
// stops at the first error. It returns how many objects are left then, and how many exist in total.
func (c *Controller) rewrite(ctx context.Context, r resource, until string) (left, total int64, err error) {
	opts := metav1.ListOptions{Limit: page}
	var done int64
	for {
		list, err := c.cfg.Metadata.Resource(r.gvr).List(ctx, opts)
		if apierrors.IsResourceExpired(err) && opts.Continue != "" {
			// Start again. Objects that are already rewritten cost little.
			opts.Continue, done = "", 0
			continue
		}
		if err != nil {
			return total - done, total, fmt.Errorf("listing %s: %w", r.gvr.GroupResource(), err)
		}
		total = done + int64(len(list.Items))
		if n := list.RemainingItemCount; n != nil {
			total += *n
		}
		for i := range list.Items {
			if err := c.touch(ctx, r, &list.Items[i], until); err != nil {
				return total - done, total, err
			}
			done++
		}
		if opts.Continue = list.Continue; opts.Continue == "" {
			return 0, total, nil
		}
	}
}

// touch sends a patch of obj that changes nothing, unless obj is newer than until. The API server then writes the
// object if its stored format is outdated. If the object was deleted or changed since it was read, nothing is left to
// do, and touch returns no error.
func (c *Controller) touch(ctx context.Context, r resource, obj *metav1.PartialObjectMetadata, until string) error {
	newer, err := resourceversion.CompareResourceVersion(obj.ResourceVersion, until)
	if err != nil {
		return fmt.Errorf("%s %s/%s: %w", r.gvr.GroupResource(), obj.Namespace, obj.Name, err)
	}
	if newer > 0 {
		return nil
	}
	version, kind := r.kind.ToAPIVersionAndKind()
	patch, err := json.Marshal(map[string]any{
		"apiVersion": version, "kind": kind, "metadata": map[string]string{"resourceVersion": obj.ResourceVersion},
	})
	if err != nil {
		return fmt.Errorf("encoding patch: %w", err)
	}
	_, err = c.cfg.Metadata.Resource(r.gvr).Namespace(obj.Namespace).Patch(ctx, obj.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// The object was deleted, or was written concurrently in the current format.
		return nil
	}
	return err
}

// isTransient reports whether a retry may succeed after err, which a busy or restarting API server returned.
func isTransient(err error) bool {
	return utilnet.IsConnectionReset(err) || utilnet.IsConnectionRefused(err) || utilnet.IsHTTP2ConnectionLost(err) || utilnet.IsProbableEOF(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsInternalError(err) || apierrors.IsTimeout(err)
}
