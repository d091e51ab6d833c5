package env

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
)

// Var is an environment variable.
type Var struct{ Name, Value string }

// Objects provides the ConfigMaps and Secrets that a pod refers to. Errors are those of the API, so that
// apierrors.IsNotFound works.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// Input is the input of Make. Services are the variables that describe the cluster's Services, At has the addresses
// for status.podIP and similar fieldRefs, and Allocatable has the node's allocatable resources, which are the
// default of limits.
type Input struct {
	Pod         *v1.Pod
	Container   *v1.Container
	Objects     Objects
	Services    []Var
	At          Addresses
	Allocatable v1.ResourceList
	// File reads a key of an env file in a volume of the pod (fileKeyRef). If it is nil, the pod
	// has no volumes.
	File func(ref *v1.FileKeySelector) (value string, found bool, err error)
	// Warn is called with invalid variable names in envFrom. It may be nil.
	Warn func(message string)
}

// Make returns the container's environment variables in order, with unique names: those of envFrom, then env,
// which takes precedence, then those of Services that are not set otherwise. It returns an error if an object
// or a key that is not optional does not exist.
func Make(ctx context.Context, in Input) ([]Var, error) {
	b := builder{values: map[string]string{}}
	for i := range in.Container.EnvFrom {
		if err := b.from(ctx, &in, &in.Container.EnvFrom[i]); err != nil {
			return nil, err
		}
	}
	services := map[string]string{}
	for _, v := range in.Services {
		services[v.Name] = v.Value
	}
	lookup := func(name string) (string, bool) {
		if v, ok := b.values[name]; ok {
			return v, true
		}
		v, ok := services[name]
		return v, ok
	}
	for i := range in.Container.Env {
		e := &in.Container.Env[i]
		value, ok, err := b.value(ctx, &in, e, lookup)
		if err != nil {
			return nil, err
		}
		if ok {
			b.set(e.Name, value)
		}
	}
	for _, v := range in.Services {
		if _, taken := b.values[v.Name]; !taken {
			b.set(v.Name, v.Value)
		}
	}
	out := make([]Var, len(b.order))
	for i, name := range b.order {
		out[i] = Var{name, b.values[name]}
	}
	return out, nil
}

// builder collects variables in the order in which they were first set.
type builder struct {
	order  []string
	values map[string]string
}

// set sets a variable. A variable that is already set keeps its position.
func (b *builder) set(name, value string) {
	if _, ok := b.values[name]; !ok {
		b.order = append(b.order, name)
	}
	b.values[name] = value
}

// from adds the keys of a ConfigMap or Secret of envFrom. Keys that are not valid names are skipped and
// reported with Warn. An object that does not exist is an error unless it is optional.
func (b *builder) from(ctx context.Context, in *Input, src *v1.EnvFromSource) error {
	var data map[string]string
	var kind, name string
	switch {
	case src.ConfigMapRef != nil:
		kind, name = "configMap", src.ConfigMapRef.Name
		cm, err := in.Objects.ConfigMap(ctx, in.Pod.Namespace, name)
		if err != nil {
			if apierrors.IsNotFound(err) && ptr.Deref(src.ConfigMapRef.Optional, false) {
				return nil
			}
			return err
		}
		data = cm.Data
	case src.SecretRef != nil:
		kind, name = "secret", src.SecretRef.Name
		s, err := in.Objects.Secret(ctx, in.Pod.Namespace, name)
		if err != nil {
			if apierrors.IsNotFound(err) && ptr.Deref(src.SecretRef.Optional, false) {
				return nil
			}
			return err
		}
		data = make(map[string]string, len(s.Data))
		for k, v := range s.Data {
			data[k] = string(v)
		}
	}
	var invalid []string
	for _, k := range slices.Sorted(maps.Keys(data)) {
		v := data[k]
		k = src.Prefix + k
		if len(validation.IsRelaxedEnvVarName(k)) > 0 {
			invalid = append(invalid, k)
			continue
		}
		b.set(k, v)
	}
	if len(invalid) > 0 && in.Warn != nil {
		in.Warn(fmt.Sprintf("Keys [%s] from the EnvFrom %s %s/%s were skipped since they are considered invalid environment variable names.",
			strings.Join(invalid, ", "), kind, in.Pod.Namespace, name))
	}
	return nil
}

// value returns the value of the variable e. lookup returns the variables that it may refer to. The second
// result is false if the variable is not set because an optional object or key does not exist.
func (b *builder) value(ctx context.Context, in *Input, e *v1.EnvVar, lookup func(string) (string, bool)) (string, bool, error) {
	if e.ValueFrom == nil {
		return Expand(e.Value, lookup), true, nil
	}
	switch from := e.ValueFrom; {
	case from.FieldRef != nil:
		v, err := Field(in.Pod, from.FieldRef.FieldPath, in.At)
		return v, true, err
	case from.ResourceFieldRef != nil:
		c := in.Container
		if name := from.ResourceFieldRef.ContainerName; name != "" {
			if c = Container(in.Pod, name); c == nil {
				return "", false, fmt.Errorf("container %s not found", name)
			}
		}
		v, err := Resource(from.ResourceFieldRef, in.Pod, c, in.Allocatable)
		return v, true, err
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		cm, err := in.Objects.ConfigMap(ctx, in.Pod.Namespace, ref.Name)
		if err != nil {
			if apierrors.IsNotFound(err) && ptr.Deref(ref.Optional, false) {
				return "", false, nil
			}
			return "", false, err
		}
		v, ok := cm.Data[ref.Key]
		if !ok && !ptr.Deref(ref.Optional, false) {
			return "", false, fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", ref.Key, in.Pod.Namespace, ref.Name)
		}
		return v, ok, nil
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		s, err := in.Objects.Secret(ctx, in.Pod.Namespace, ref.Name)
		if err != nil {
			if apierrors.IsNotFound(err) && ptr.Deref(ref.Optional, false) {
				return "", false, nil
			}
			return "", false, err
		}
		v, ok := s.Data[ref.Key]
		if !ok && !ptr.Deref(ref.Optional, false) {
			return "", false, fmt.Errorf("couldn't find key %v in Secret %v/%v", ref.Key, in.Pod.Namespace, ref.Name)
		}
		return string(v), ok, nil
	case from.FileKeyRef != nil:
		if in.File == nil {
			return "", false, fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", from.FileKeyRef.VolumeName)
		}
		v, ok, err := in.File(from.FileKeyRef)
		if err != nil {
			return "", false, err
		}
		if !ok && !ptr.Deref(from.FileKeyRef.Optional, false) {
			return "", false, fmt.Errorf("environment variable key %q not found in file %q", from.FileKeyRef.Key, from.FileKeyRef.Path)
		}
		return v, ok, nil
	}
	return "", true, nil
}

// Container returns the pod's app or init container of that name, or nil.
func Container(pod *v1.Pod, name string) *v1.Container {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == name {
			return &pod.Spec.Containers[i]
		}
	}
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == name {
			return &pod.Spec.InitContainers[i]
		}
	}
	return nil
}
