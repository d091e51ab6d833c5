// Package former reads objects that are stored in versions other than the one
// in which their kind is stored now: an etcd may have objects that a server of
// years ago wrote and that nobody has written since.
//
// Most such versions only differ in their name. The others are told here, one
// file a group: what stood elsewhere, what meant something else, what had other
// defaults.
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

// SchemeName is what the error about an unknown version calls the place that
// it is unknown in.
const SchemeName = "pkg/runtime/scheme.go:111"

// reader decodes a stored object of a former version into one of the present.
// decode fills an object of the stored version.
type reader func(decode func(into runtime.Object) error, into api.Object) error

// Decode fills into, an object of the kind present, from one that is stored as
// stored. It calls decode once, with an empty object of the stored version to be
// filled. Defaults that the versions share are left to the caller. A version that
// Kubernetes 1.37 does not know is an error.
func Decode(present schema.GroupVersionKind, stored schema.GroupVersion, into api.Object, decode func(into runtime.Object) error) error {
	if read, ok := readers[present][stored]; ok {
		return read(decode, into)
	}
	if !known(stored.WithKind(present.Kind)) {
		return runtime.NewNotRegisteredErrForKind(SchemeName, stored.WithKind(present.Kind))
	}
	return decode(into)
}

// Differs tells whether a version differs from the present one by more than its
// name. The present one does for kinds that have been stored less fully than
// they are now.
func Differs(present schema.GroupVersionKind, stored schema.GroupVersion) bool {
	_, ok := readers[present][stored]
	return ok
}

// known tells whether Kubernetes 1.37 can read a kind.
func known(gvk schema.GroupVersionKind) bool {
	switch gvk.GroupVersion() {
	case schema.GroupVersion{Group: apiextensionsv1beta1.GroupName, Version: "v1"}, apiextensionsv1beta1.SchemeGroupVersion:
		return gvk.Kind == "CustomResourceDefinition"
	case schema.GroupVersion{Group: apiregistrationv1beta1.GroupName, Version: "v1"}, apiregistrationv1beta1.SchemeGroupVersion:
		return gvk.Kind == "APIService"
	}
	return scheme.Scheme.Recognizes(gvk)
}

// readers are those for versions that differ by more than their name, by the
// kind that is stored now. It is never written to.
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

// version is a former version of a kind.
type version struct {
	kind            string
	present, stored schema.GroupVersion
	read            reader
}

// alike reads a version whose fields are those of the present one, but for
// what adapt sees to.
func alike[P api.Object](adapt func(now P) error) reader {
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

// message is a pointer to a published type.
type message[T any] interface {
	*T
	runtime.Object
}

// other reads a version with a type of its own. What has the same name in both
// is there when adapt is called, which may be nil.
func other[O any, OP message[O], P api.Object](adapt func(old OP, now P) error) reader {
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

// copyByName copies the fields that two types share, by their names in JSON.
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
