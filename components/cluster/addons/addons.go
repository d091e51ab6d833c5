// Package addons applies the objects of cluster DNS and of the optional add-ons to a cluster. It
// retries objects that the cluster's admission policies reject.
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

// FieldManager is the field manager with which the cluster commands apply objects.
const FieldManager = "hyperkube"

// Objects returns the objects of the add-ons, in batches in the order of creation. Deployments and
// DaemonSets are in the second batch, because their pods need the service accounts and RBAC rules
// of the first.
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

// Install applies the objects of the add-ons to a new cluster.
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

// resourceOf returns the client for the kind and namespace of obj. The plural of the kind must be
// regular.
func resourceOf(client dynamic.Interface, obj *unstructured.Unstructured) dynamic.ResourceInterface {
	gvr, _ := meta.UnsafeGuessKindToResource(obj.GroupVersionKind())
	if obj.GetNamespace() != "" {
		return client.Resource(gvr).Namespace(obj.GetNamespace())
	}
	return client.Resource(gvr)
}

// Apply applies one object with server-side apply. The plural of its kind must be regular.
func Apply(ctx context.Context, client dynamic.Interface, obj *unstructured.Unstructured) error {
	resource := resourceOf(client, obj)
	if obj.GetKind() == "StorageClass" {
		// Most fields of a StorageClass are immutable, and the user decides which class is the
		// default. So an existing StorageClass stays as it is.
		if _, err := resource.Create(ctx, obj, metav1.CreateOptions{FieldManager: FieldManager}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating %s %s: %w", obj.GetKind(), obj.GetName(), err)
		}
		return nil
	}
	if _, err := resource.Apply(ctx, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: FieldManager, Force: true}); err != nil {
		return fmt.Errorf("applying %s %s: %w", obj.GetKind(), obj.GetName(), err)
	}
	return nil
}
