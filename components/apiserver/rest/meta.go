package rest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"

	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

// checkNamespace sets the namespace of the request in obj, which the client has sent. It returns a BadRequest error
// if obj has another namespace. An object of a cluster-scoped resource loses its namespace.
func (c *call) checkNamespace(obj api.Object) error {
	given := obj.GetNamespace()
	switch {
	case given == c.namespace:
	case given == "":
		obj.SetNamespace(c.namespace)
	case c.namespace == "":
		obj.SetNamespace("")
	default:
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	return nil
}

// checkName returns a BadRequest error if the name of obj, which the client has sent, is not the
// name in the path.
func (c *call) checkName(obj api.Object) error {
	if obj.GetName() == "" {
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: name must be provided", c.name))
	}
	if obj.GetName() != c.name {
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", obj.GetName(), c.name))
	}
	return nil
}

// wipe clears the metadata of a new object that only the server may set: creation and deletion
// times, UID and selfLink.
func wipe(obj metav1.Object) {
	obj.SetCreationTimestamp(metav1.Time{})
	obj.SetUID("")
	obj.SetDeletionTimestamp(nil)
	obj.SetDeletionGracePeriodSeconds(nil)
	obj.SetSelfLink("")
}

// prepareNew generates the name, UID and creation time of a new object, calls the resource's
// preparation and defaults, and validates it. It adds the resource's warnings to the response. It
// returns an Invalid error if validation fails.
func (c creator) prepareNew(ctx context.Context, obj api.Object) error {
	obj.SetDeletionTimestamp(nil)
	obj.SetDeletionGracePeriodSeconds(nil)
	obj.SetSelfLink("")
	if obj.GetName() == "" && obj.GetGenerateName() != "" {
		obj.SetName(generateName(obj.GetGenerateName()))
	}
	obj.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	obj.SetUID(uuid.NewUUID())
	c.res.PrepareCreate(ctx, obj)
	c.res.Default(obj)
	if errs := c.res.Validate(ctx, obj); len(errs) > 0 {
		return newInvalid(invalidKind(c.res), obj.GetName(), errs)
	}
	// Names of all kinds must be valid path segments.
	if msgs := path.IsValidPathSegmentName(obj.GetName()); len(msgs) > 0 {
		errs := validate.Errors{}
		errs.InvalidAll(field.NewPath("metadata", "name"), obj.GetName(), msgs)
		return newInvalid(invalidKind(c.res), obj.GetName(), errs.List)
	}
	if c.res.Canonicalize != nil {
		c.res.Canonicalize(obj)
	}
	for _, text := range c.res.Warnings(ctx, obj, nil) {
		warning.AddWarning(ctx, "", text)
	}
	return nil
}

// invalidKind returns the kind to name in validation errors: the stored version's kind, which can
// have another group than the requested one.
func invalidKind(res *registry.Resource) schema.GroupKind {
	if res.StoredAs != nil {
		return res.StoredAs.GroupVersionKind.GroupKind()
	}
	return res.GVK().GroupKind()
}

// generateName returns base, truncated to 58 characters, with a random suffix of five characters, as upstream does
// for metadata.generateName.
func generateName(base string) string {
	const random, most = 5, 63
	if len(base) > most-random {
		base = base[:most-random]
	}
	return base + rand.String(random)
}

// prepareChange prepares, defaults and validates obj as the replacement of old, as way requires, and adds warnings to
// the response. It keeps metadata of old that an update cannot change, such as the creation time and a deletion
// timestamp. It returns an Invalid error if validation fails.
func prepareChange(ctx context.Context, res *registry.Resource, way *api.Update, obj, old api.Object) error {
	obj.SetGeneration(old.GetGeneration())
	obj.SetSelfLink("")
	way.Prepare(ctx, obj, old)
	if obj.GetUID() == "" {
		obj.SetUID(old.GetUID())
	}
	if created := old.GetCreationTimestamp(); !created.IsZero() {
		obj.SetCreationTimestamp(created)
	}
	// An update never cancels a deletion.
	if t := old.GetDeletionTimestamp(); t != nil {
		obj.SetDeletionTimestamp(t)
	}
	if old.GetDeletionGracePeriodSeconds() != nil && obj.GetDeletionGracePeriodSeconds() == nil {
		obj.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
	}
	res.Default(obj)
	if errs := way.Validate(ctx, obj, old); len(errs) > 0 {
		return newInvalid(invalidKind(res), obj.GetName(), errs)
	}
	if res.Canonicalize != nil {
		res.Canonicalize(obj)
	}
	warnings := way.Warnings
	if len(way.Verbs) == 0 {
		warnings = res.Warnings
	}
	if warnings == nil {
		return nil
	}
	for _, text := range warnings(ctx, obj, old) {
		warning.AddWarning(ctx, "", text)
	}
	return nil
}

// uniqueOwners removes duplicate owner references of obj and adds a warning about them to the response.
// afterAdmission selects the text of the warning for duplicates that mutating admission may have added.
func uniqueOwners(ctx context.Context, obj metav1.Object, afterAdmission bool) {
	owners := obj.GetOwnerReferences()
	if len(owners) < 2 {
		return
	}
	var kept []metav1.OwnerReference
	var twice []string
	for _, o := range owners {
		if slices.ContainsFunc(kept, func(k metav1.OwnerReference) bool { return sameOwner(k, o) }) {
			twice = append(twice, string(o.UID))
			continue
		}
		kept = append(kept, o)
	}
	if len(twice) == 0 {
		return
	}
	obj.SetOwnerReferences(kept)
	format := ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: %v"
	if afterAdmission {
		format = ".metadata.ownerReferences contains duplicate entries after mutating admission happens; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: %v"
	}
	warning.AddWarning(ctx, "", fmt.Sprintf(format, strings.Join(twice, ", ")))
}

// sameOwner reports whether two owner references are equal in all fields.
func sameOwner(a, b metav1.OwnerReference) bool {
	return a.UID == b.UID && a.Name == b.Name && a.Kind == b.Kind && a.APIVersion == b.APIVersion &&
		sameBool(a.Controller, b.Controller) && sameBool(a.BlockOwnerDeletion, b.BlockOwnerDeletion)
}

// sameBool reports whether two optional booleans are both unset or have the same value.
func sameBool(a, b *bool) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }
