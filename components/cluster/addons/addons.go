// Package addons applies the objects of DNS and of the optional add-ons to a cluster,
// and keeps at it where users' policies stand in the way.
package addons

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"hyperkube/manifests"
)

// FieldManager owns the fields of what the cluster commands apply.
const FieldManager = "hyperkube"

// Objects are the add-ons' objects, in the batches in which they are made:
// those without workload come first, for pods need their service account and
// its rights.
func Objects(v manifests.Values, optional ...string) ([][]*unstructured.Unstructured, error) {
	objects, err := manifests.Addons(v)
	if err != nil {
		return nil, err
	}
	for _, name := range optional {
		more, err := manifests.Addon(name, v)
		if err != nil {
			return nil, err
		}
		objects = append(objects, more...)
	}
	var first, then []*unstructured.Unstructured
	for _, obj := range objects {
		if obj.GetKind() == "Deployment" || obj.GetKind() == "DaemonSet" {
			then = append(then, obj)
		} else {
			first = append(first, obj)
		}
	}
	return [][]*unstructured.Unstructured{first, then}, nil
}

// Install applies the add-ons' objects to a new cluster.
func Install(ctx context.Context, client dynamic.Interface, v manifests.Values, optional ...string) error {
	batches, err := Objects(v, optional...)
	if err != nil {
		return err
	}
	for _, batch := range batches {
		group, ctx := errgroup.WithContext(ctx)
		for _, obj := range batch {
			group.Go(func() error { return Apply(ctx, client, obj) })
		}
		if err := group.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// resourceOf is where objects of obj's kind, whose plural is regular, and
// namespace are.
func resourceOf(client dynamic.Interface, obj *unstructured.Unstructured) dynamic.ResourceInterface {
	gvr, _ := meta.UnsafeGuessKindToResource(obj.GroupVersionKind())
	if obj.GetNamespace() != "" {
		return client.Resource(gvr).Namespace(obj.GetNamespace())
	}
	return client.Resource(gvr)
}

// Apply applies one object of a kind whose plural is regular.
func Apply(ctx context.Context, client dynamic.Interface, obj *unstructured.Unstructured) error {
	resource := resourceOf(client, obj)
	if obj.GetKind() == "StorageClass" {
		// Hardly anything of it can be changed, and whether it is the default
		// is the user's to say.
		if _, err := resource.Create(ctx, obj, metav1.CreateOptions{FieldManager: FieldManager}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("making %s %s: %w", obj.GetKind(), obj.GetName(), err)
		}
		return nil
	}
	if _, err := resource.Apply(ctx, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: FieldManager, Force: true}); err != nil {
		return fmt.Errorf("applying %s %s: %w", obj.GetKind(), obj.GetName(), err)
	}
	return nil
}
