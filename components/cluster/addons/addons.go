// Package addons applies the enabled add-ons of a cluster and prunes the disabled ones. Each add-on is an
// ApplySet whose parent is the ConfigMap kube-system/hyperkube-addon-NAME.
//
// The settings are in the ConfigMap kube-system/hyperkube-addons (Settings). The main process of a cluster of
// `up` watches it and applies changes (Manager). In a cluster of `init`, no process has the permissions for
// this, because those of the administrator would have to be granted to a component. So `init`, `upgrade` and
// `addon enable` apply the add-ons themselves (Reconciler).
package addons

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"hyperkube/components/cluster/applyset"
	"hyperkube/internal/client"
	"hyperkube/manifests"
)

// FieldManager is the field manager with which the cluster commands apply objects.
const FieldManager = "hyperkube"

// AddonLabel is the label of the parent of an add-on's set. Its value is the name of the add-on.
const AddonLabel = "hyperkube.io/addon"

// dataError is the key of the last error in the data of the parent of an add-on's set.
const dataError = "error"

// Problem returns the last error of an add-on from the data of the parent of its set, or "" if there is none.
func Problem(data map[string]string) string { return data[dataError] }

// Reconciler applies and prunes add-ons. It is safe for concurrent use for different add-ons.
type Reconciler struct {
	Client *applyset.Client
	// Values are the template values of the manifests.
	Values manifests.Values
	// FormerPods is true if an earlier version of `up` may have run the metrics server as pods in this cluster.
	// They are deleted.
	FormerPods bool
}

// NewReconciler returns a Reconciler that finds resources by discovery.
func NewReconciler(clients *client.Clients, v manifests.Values) *Reconciler {
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(clients.Kube.Discovery()))
	return &Reconciler{Client: &applyset.Client{Dynamic: clients.Dynamic, Mapper: mapper, FieldManager: FieldManager}, Values: v}
}

// SetOf returns the ApplySet of an add-on. Objects that other clients have created are left unchanged; objects that
// hyperkube created before it used ApplySets become members. An existing StorageClass of the add-on is not updated,
// because most of its fields are immutable and the user decides which class is the default.
func SetOf(a manifests.Addon) applyset.Set {
	return applyset.Set{
		Name: "hyperkube-addon-" + a.Name, Labels: map[string]string{AddonLabel: a.Name},
		KeepForeign: true, Adopt: true,
		CreateOnly: func(obj *unstructured.Unstructured) bool { return obj.GetKind() == "StorageClass" },
		Release:    isDefinition,
	}
}

// isDefinition reports whether an object is a CustomResourceDefinition. Those of a disabled add-on are kept, because all
// objects of their kinds would be deleted with them.
func isDefinition(obj *unstructured.Unstructured) bool {
	return obj.GetKind() == "CustomResourceDefinition"
}

// Status is the result of reconciling an add-on.
type Status struct {
	applyset.Result
	// ReplacedBy is the Service of another client that serves the API of the add-on. It is empty if there is
	// none.
	ReplacedBy string
}

// Reconcile applies an enabled add-on, or deletes the objects of a disabled one. If another client serves the API of
// the add-on, the add-on is treated as disabled, and objects that another client has modified are kept.
func (r *Reconciler) Reconcile(ctx context.Context, a manifests.Addon, enabled bool) (Status, error) {
	objects, err := a.Objects(r.Values)
	if err != nil {
		return Status{}, err
	}
	set := SetOf(a)
	service, err := r.ReplacedBy(ctx, a)
	if err != nil {
		return Status{}, err
	}
	if service != "" {
		// Objects with the same names are now those of the other server.
		set.Release = func(obj *unstructured.Unstructured) bool { return isDefinition(obj) || modifiedByOther(obj) }
	}
	if !enabled || service != "" {
		return Status{Result: applyset.Result{Complete: true}, ReplacedBy: service}, r.Client.Delete(ctx, set)
	}
	if err := r.adoptFormerPods(ctx, a, set); err != nil {
		return Status{}, err
	}
	result, err := r.Client.Apply(ctx, set, objects)
	return Status{Result: result}, err
}

// adoptFormerPods makes the objects of a metrics server that an earlier version of `up` has run as pods members of the
// set, so that they are pruned. It does nothing for other add-ons, if FormerPods is not set, or if the set was already
// applied completely.
func (r *Reconciler) adoptFormerPods(ctx context.Context, a manifests.Addon, set applyset.Set) error {
	if !r.FormerPods || a.Name != "metrics" {
		return nil
	}
	if applied, err := r.Client.Applied(ctx, set); applied || err != nil {
		return err
	}
	v := r.Values
	v.InProcess = false
	former, err := a.Objects(v)
	if err != nil {
		return err
	}
	return r.Client.Adopt(ctx, set, former)
}

// ReconcileAll reconciles all add-ons with the settings of the cluster, concurrently. It returns the first error, which
// cancels the others.
func (r *Reconciler) ReconcileAll(ctx context.Context, s Settings) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, a := range manifests.Addons() {
		group.Go(func() error {
			if _, err := r.Reconcile(ctx, a, s.Enabled(a)); err != nil {
				return fmt.Errorf("add-on %s: %w", a.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

// ReplacedBy returns the namespace and name of the Service in the APIService of an add-on if another client than hyperkube has
// set it, so that another server serves the API of the add-on. Otherwise, and if the add-on serves no API, it returns "".
func (r *Reconciler) ReplacedBy(ctx context.Context, a manifests.Addon) (string, error) {
	if a.APIService == "" {
		return "", nil
	}
	live, err := r.Client.Dynamic.Resource(apiServices).Get(ctx, a.APIService, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading APIService %s: %w", a.APIService, err)
	}
	namespace, _, _ := unstructured.NestedString(live.Object, "spec", "service", "namespace")
	name, found, _ := unstructured.NestedString(live.Object, "spec", "service", "name")
	// The add-on itself sets the Service of a metrics server in pods.
	if !found || !modifiedByOther(live) {
		return "", nil
	}
	return namespace + "/" + name, nil
}

// modifiedByOther reports whether a client other than hyperkube and the control plane components owns a field of an
// object. The fields in metadata and status, and those written through a subresource, do not count.
func modifiedByOther(obj *unstructured.Unstructured) bool {
	for _, m := range obj.GetManagedFields() {
		if m.Manager == FieldManager || strings.HasPrefix(m.Manager, "kube-") || m.Subresource != "" || m.FieldsV1 == nil {
			continue
		}
		var fields map[string]any
		if json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		for name := range fields {
			if name != "f:metadata" && name != "f:status" {
				return true
			}
		}
	}
	return false
}

// Apply applies one object with server-side apply, without an ApplySet. It takes over fields of other field managers.
// The plural of the kind must be regular, because it is guessed from the kind.
func Apply(ctx context.Context, client dynamic.Interface, obj *unstructured.Unstructured) error {
	gvr, _ := meta.UnsafeGuessKindToResource(obj.GroupVersionKind())
	var resource dynamic.ResourceInterface = client.Resource(gvr)
	if obj.GetNamespace() != "" {
		resource = client.Resource(gvr).Namespace(obj.GetNamespace())
	}
	if _, err := resource.Apply(ctx, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: FieldManager, Force: true}); err != nil {
		return fmt.Errorf("applying %s %s: %w", obj.GetKind(), obj.GetName(), err)
	}
	return nil
}

// errDisableRequired is the error for an attempt to disable a required add-on.
var errDisableRequired = errors.New("cannot be disabled")

// Check returns the add-ons with the names. It returns an error for an unknown name, and, unless enabled is
// true, for an add-on that cannot be disabled.
func Check(names []string, enabled bool) ([]manifests.Addon, error) {
	var out []manifests.Addon
	for _, name := range names {
		a, err := manifests.FindAddon(name)
		if err != nil {
			return nil, err
		}
		if !enabled && a.Required != "" {
			return nil, fmt.Errorf("add-on %s %w: %s", name, errDisableRequired, a.Required)
		}
		out = append(out, a)
	}
	return out, nil
}
