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
	// page is how many objects are listed at once.
	page = 500
	// nowhere is a namespace that is not there: to list what it has costs nothing
	// and tells the revision all the same.
	nowhere = "fake-storage-version-migration"
)

// verbs are those that a resource needs to be migrated.
var verbs = []string{"update", "patch", "list"}

// resource is what discovery tells of one. Without gvr there is none.
type resource struct {
	gvr        schema.GroupVersionResource
	kind       schema.GroupVersionKind
	namespaced bool
	migratable bool
}

// resource finds the version that the API server prefers.
func (c *Controller) resource(ctx context.Context, want schema.GroupResource) (resource, error) {
	lists, err := c.cfg.Discovery.ServerPreferredResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return resource{}, fmt.Errorf("looking for %s: %w", want, err)
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

// revision is that of the resource's newest list.
func (c *Controller) revision(ctx context.Context, r resource) (string, error) {
	namespace := ""
	if r.namespaced {
		namespace = nowhere
	}
	list, err := c.cfg.Metadata.Resource(r.gvr).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return "", fmt.Errorf("reading the resource version of %s: %w", r.gvr.GroupResource(), err)
	}
	return list.ResourceVersion, nil
}

// rewrite makes the API server store each object again that is not newer than a
// revision. It tells how many of how many objects were left when it ended.
func (c *Controller) rewrite(ctx context.Context, r resource, until string) (left, total int64, err error) {
	opts := metav1.ListOptions{Limit: page}
	var done int64
	for {
		list, err := c.cfg.Metadata.Resource(r.gvr).List(ctx, opts)
		if apierrors.IsResourceExpired(err) && opts.Continue != "" {
			// What was done already costs little the second time.
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

// touch patches nothing of an object, which makes the API server store it if it
// would store it otherwise than it is.
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
		return fmt.Errorf("encoding a patch: %w", err)
	}
	_, err = c.cfg.Metadata.Resource(r.gvr).Namespace(obj.Namespace).Patch(ctx, obj.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// It is gone, or was written meanwhile, as a write does it now.
		return nil
	}
	return err
}

// passes tells whether an error is that of a busy or restarting API server.
func passes(err error) bool {
	return utilnet.IsConnectionReset(err) || utilnet.IsConnectionRefused(err) || utilnet.IsHTTP2ConnectionLost(err) || utilnet.IsProbableEOF(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsInternalError(err) || apierrors.IsTimeout(err)
}
