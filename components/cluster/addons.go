package cluster

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

// fieldManager owns the fields of what the cluster commands apply.
const fieldManager = "hyperkube"

// applyAddons applies the add-ons' objects. Those without workload come first,
// for pods need their service account and its rights.
func applyAddons(ctx context.Context, client dynamic.Interface, v manifests.Values, optional ...string) error {
	objects, err := manifests.Addons(v)
	if err != nil {
		return err
	}
	for _, name := range optional {
		more, err := manifests.Addon(name, v)
		if err != nil {
			return err
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
	for _, batch := range [][]*unstructured.Unstructured{first, then} {
		group, ctx := errgroup.WithContext(ctx)
		for _, obj := range batch {
			group.Go(func() error { return apply(ctx, client, obj) })
		}
		if err := group.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// apply applies one object of a kind whose plural is regular.
func apply(ctx context.Context, client dynamic.Interface, obj *unstructured.Unstructured) error {
	gvr, _ := meta.UnsafeGuessKindToResource(obj.GroupVersionKind())
	var resource dynamic.ResourceInterface = client.Resource(gvr)
	if obj.GetNamespace() != "" {
		resource = client.Resource(gvr).Namespace(obj.GetNamespace())
	}
	if obj.GetKind() == "StorageClass" {
		// Hardly anything of it can be changed, and whether it is the default
		// is the user's to say.
		if _, err := resource.Create(ctx, obj, metav1.CreateOptions{FieldManager: fieldManager}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("making %s %s: %w", obj.GetKind(), obj.GetName(), err)
		}
		return nil
	}
	if _, err := resource.Apply(ctx, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: fieldManager, Force: true}); err != nil {
		return fmt.Errorf("applying %s %s: %w", obj.GetKind(), obj.GetName(), err)
	}
	return nil
}
