// Package former decodes stored objects in versions other than the current storage version of their
// kind. etcd may contain objects that old servers have written and that were not updated since.
//
// Most of these versions only differ in their name. The others are handled here, one file per
// group: fields that were moved, had another meaning or had other defaults.
//
// https://kubernetes.io/docs/reference/using-api/deprecation-policy/
package former

import (
	"encoding/json"
	"fmt"
	"slices"

	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistrationv1beta1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1beta1"

	"hyperkube/internal/api"
)

// SchemeName is the scheme name in errors about unknown versions. It equals upstream's, so that
// clients see the same message.
const SchemeName = "pkg/runtime/scheme.go:111"

// reader decodes a stored object in a former version into the object into, which has the present version. decode
// decodes the stored data into the object that it is passed. If both versions have the same fields, that is into.
// Otherwise it is an object of the former version, which the reader then converts.
type reader func(decode func(into runtime.Object) error, into api.Object) error

// Decode decodes a stored object into the object into. The stored version may be a former one;
// present is the kind of into in its present version. It calls decode once, with into if the
// versions have the same fields, and otherwise with an empty object of the stored version, which it
// then converts. The caller must apply the defaults that are the same in both versions. Decode
// returns an error if Kubernetes 1.37 does not support the stored version.
func Decode(present schema.GroupVersionKind, stored schema.GroupVersion, into api.Object, decode func(into runtime.Object) error) error {
	if read, ok := readers[present][stored]; ok {
		return read(decode, into)
	}
	if !isKnownKind(stored.WithKind(present.Kind)) {
		return runtime.NewNotRegisteredErrForKind(SchemeName, stored.WithKind(present.Kind))
	}
	return decode(into)
}

// Differs reports whether a version differs from the present one in more than its name. This
// includes the present version itself for kinds that were stored with missing fields in the past.
func Differs(present schema.GroupVersionKind, stored schema.GroupVersion) bool {
	_, ok := readers[present][stored]
	return ok
}

// isKnownKind reports whether Kubernetes 1.37 can decode a kind.
func isKnownKind(gvk schema.GroupVersionKind) bool {
	switch gvk.GroupVersion() {
	case schema.GroupVersion{Group: apiextensionsv1beta1.GroupName, Version: "v1"}, apiextensionsv1beta1.SchemeGroupVersion:
		return gvk.Kind == "CustomResourceDefinition"
	case schema.GroupVersion{Group: apiregistrationv1beta1.GroupName, Version: "v1"}, apiregistrationv1beta1.SchemeGroupVersion:
		return gvk.Kind == "APIService"
	}
	return scheme.Scheme.Recognizes(gvk)
}

// readers contains the reader of each stored version that differs from the present version in more
// than its name. The keys are the kind in its present version and the stored version. It is
// immutable.
var readers = func() map[schema.GroupVersionKind]map[schema.GroupVersion]reader {
	all := map[schema.GroupVersionKind]map[schema.GroupVersion]reader{}
	for _, of := range slices.Concat(admissionregistrationVersions(), apiextensionsVersions(), appsVersions(), autoscalingVersions(),
		certificatesVersions(), discoveryVersions(), eventsVersions(), flowcontrolVersions(), networkingVersions(), nodeVersions(),
		policyVersions(), rbacVersions(), resourceVersions()) {
		gvk := of.present.WithKind(of.kind)
		if all[gvk] == nil {
			all[gvk] = map[schema.GroupVersion]reader{}
		}
		all[gvk][of.stored] = of.read
	}
	return all
}()

// version is the reader of one former version of a kind: present is the API version of the returned
// objects, stored the one in etcd.
type version struct {
	kind            string
	present, stored schema.GroupVersion
	read            reader
}

// sameFields returns a reader for a stored version with the same fields as the present one. It decodes the object
// directly into the present type P. adapt then changes fields that had another meaning or other defaults.
func sameFields[P api.Object](adapt func(now P) error) reader {
	return func(decode func(into runtime.Object) error, into api.Object) error {
		now, ok := into.(P)
		if !ok {
			return fmt.Errorf("%T is not what was asked for", into)
		}
		if err := decode(now); err != nil {
			return err
		}
		return adapt(now)
	}
}

// message is a type constraint for *T, the pointer type of a published API type T. With it, a generic function can
// create an object of the type.
type message[T any] interface {
	*T
	runtime.Object
}

// convertByName returns a reader for a stored version with another Go type, O. The reader copies
// fields with the same JSON name to the present type P and then calls adapt, if it is not nil, for
// the others.
func convertByName[O any, OP message[O], P api.Object](adapt func(old OP, now P) error) reader {
	return func(decode func(into runtime.Object) error, into api.Object) error {
		now, ok := into.(P)
		if !ok {
			return fmt.Errorf("%T is not what was asked for", into)
		}
		old := OP(new(O))
		if err := decode(old); err != nil {
			return err
		}
		if err := copyByName(old, now); err != nil {
			return err
		}
		if adapt == nil {
			return nil
		}
		return adapt(old, now)
	}
}

// copyByName copies the fields that from and to, two pointers to structs, share. Fields are matched
// by their JSON names, and other fields of to are not changed.
func copyByName(from, to any) error {
	data, err := json.Marshal(from)
	if err != nil {
		return fmt.Errorf("converting %T: %w", from, err)
	}
	if err := json.Unmarshal(data, to); err != nil {
		return fmt.Errorf("converting %T to %T: %w", from, to, err)
	}
	return nil
}
