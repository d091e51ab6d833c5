package volume

import (
	"context"
	"fmt"
	"maps"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/utils/ptr"

	"hyperkube/components/kubelet/pod/env"
)

// ConfigMapVolume is the Type of configMap volumes, which contain the keys of a ConfigMap as files.
type ConfigMapVolume struct{ Objects Objects }

// Name returns the name of the directory of configMap volumes in a pod's volumes directory.
func (ConfigMapVolume) Name() string { return "kubernetes.io~configmap" }

// Is reports whether v is a configMap volume.
func (ConfigMapVolume) Is(v *v1.Volume) bool { return v.ConfigMap != nil }

// SetUp writes the selected keys of the ConfigMap, or updates them. It returns an error if the ConfigMap or a
// key does not exist, unless the volume is optional.
func (t ConfigMapVolume) SetUp(ctx context.Context, r Request) (Result, error) {
	src := r.Volume.ConfigMap
	payload := Payload{}
	keys := keys{src.Items, mode(src.DefaultMode), ptr.Deref(src.Optional, false)}
	if err := addConfigMap(ctx, t.Objects, payload, r.Pod.Namespace, src.Name, keys); err != nil {
		return Result{}, err
	}
	return write(r, payload, false, time.Time{})
}

// SecretVolume is the Type of secret volumes, which contain the keys of a Secret as files in memory.
type SecretVolume struct{ Objects Objects }

// Name returns the name of the directory of secret volumes in a pod's volumes directory.
func (SecretVolume) Name() string { return "kubernetes.io~secret" }

// Is reports whether v is a secret volume.
func (SecretVolume) Is(v *v1.Volume) bool { return v.Secret != nil }

// SetUp writes the selected keys of the Secret, or updates them. It returns an error if the Secret or a key
// does not exist, unless the volume is optional.
func (t SecretVolume) SetUp(ctx context.Context, r Request) (Result, error) {
	src := r.Volume.Secret
	payload := Payload{}
	keys := keys{src.Items, mode(src.DefaultMode), ptr.Deref(src.Optional, false)}
	if err := addSecret(ctx, t.Objects, payload, r.Pod.Namespace, src.SecretName, keys); err != nil {
		return Result{}, err
	}
	return write(r, payload, true, time.Time{})
}

// DownwardAPI is the Type of downwardAPI volumes, which contain fields of the pod as files in memory.
// Allocatable returns the allocatable resources of the node, which are the limits of containers without
// limits; it may be nil.
type DownwardAPI struct{ Allocatable func() v1.ResourceList }

// Name returns the name of the directory of downwardAPI volumes in a pod's volumes directory.
func (DownwardAPI) Name() string { return "kubernetes.io~downward-api" }

// Is reports whether v is a downwardAPI volume.
func (DownwardAPI) Is(v *v1.Volume) bool { return v.DownwardAPI != nil }

// SetUp writes the selected fields of the pod, or updates them.
func (t DownwardAPI) SetUp(_ context.Context, r Request) (Result, error) {
	payload := Payload{}
	if err := addDownward(payload, r.Pod, r.Volume.DownwardAPI.Items, mode(r.Volume.DownwardAPI.DefaultMode), t.Allocatable); err != nil {
		return Result{}, err
	}
	return write(r, payload, true, time.Time{})
}

// Projected is the Type of projected volumes, which combine several sources, such as tokens and ConfigMaps,
// in one directory in memory.
type Projected struct {
	Objects     Objects
	Tokens      Tokens
	Allocatable func() v1.ResourceList
	// Trust and Certificates may be nil. Volumes with such sources then fail.
	Trust        TrustBundles
	Certificates Certificates
}

// Name returns the name of the directory of projected volumes in a pod's volumes directory.
func (Projected) Name() string { return "kubernetes.io~projected" }

// Is reports whether v is a projected volume.
func (Projected) Is(v *v1.Volume) bool { return v.Projected != nil }

// SetUp writes the files of all sources, or updates them. Refresh of the Result is when the first token or
// certificate must be renewed. If sources fail, nothing is written, and the error contains all of their
// errors.
func (t Projected) SetUp(ctx context.Context, r Request) (Result, error) {
	src := r.Volume.Projected
	def := mode(src.DefaultMode)
	payload := Payload{}
	var refresh time.Time
	var errs []error
	sooner := func(again time.Time) {
		if refresh.IsZero() || (!again.IsZero() && again.Before(refresh)) {
			refresh = again
		}
	}
	for i := range src.Sources {
		s := &src.Sources[i]
		var err error
		switch {
		case s.ConfigMap != nil:
			err = addConfigMap(ctx, t.Objects, payload, r.Pod.Namespace, s.ConfigMap.Name, keys{s.ConfigMap.Items, def, ptr.Deref(s.ConfigMap.Optional, false)})
		case s.Secret != nil:
			err = addSecret(ctx, t.Objects, payload, r.Pod.Namespace, s.Secret.Name, keys{s.Secret.Items, def, ptr.Deref(s.Secret.Optional, false)})
		case s.DownwardAPI != nil:
			err = addDownward(payload, r.Pod, s.DownwardAPI.Items, def, t.Allocatable)
		case s.ServiceAccountToken != nil:
			var token string
			var again time.Time
			token, again, err = t.Tokens.Token(ctx, r.Pod, s.ServiceAccountToken)
			payload[s.ServiceAccountToken.Path] = ownFile(r.Pod, []byte(token), s.ServiceAccountToken.User, def)
			sooner(again)
		case s.ClusterTrustBundle != nil && t.Trust != nil:
			err = addTrustAnchors(ctx, t.Trust, payload, r.Pod, s.ClusterTrustBundle, def)
		case s.PodCertificate != nil && t.Certificates != nil:
			var again time.Time
			again, err = t.addCertificate(ctx, payload, r, i, s.PodCertificate, def)
			sooner(again)
		default:
			err = fmt.Errorf("unsupported projected volume source")
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	// All missing sources are reported together.
	if err := utilerrors.NewAggregate(errs); err != nil {
		return Result{}, err
	}
	return write(r, payload, true, refresh)
}

// write writes payload into the volume's directory on disk or, with memory, into a tmpfs mounted there, and changes
// the group to the pod's fsGroup. refresh is when the volume must be updated next, which the Result contains.
func write(r Request, payload Payload, memory bool, refresh time.Time) (Result, error) {
	fresh, err := makeDir(r.Dir)
	if err != nil {
		return Result{}, err
	}
	if memory {
		if err := mountTmpfs(r.Dir, 0); err != nil {
			return Result{}, err
		}
	}
	group := FSGroup(r.Pod)
	if err := writeAtomically(r.Dir, payload, group); err != nil {
		return Result{}, err
	}
	if group != nil && (fresh || lacksGroup(r.Dir)) {
		if err := setGroup(r.Dir, *group, true); err != nil {
			return Result{}, err
		}
	}
	return Result{Path: r.Dir, ReadOnly: true, Relabel: true, Refresh: refresh}, nil
}

// keys selects the keys of a ConfigMap or Secret that become files of a volume, and the mode of these files.
type keys struct {
	items    []v1.KeyToPath // empty means all keys, with their names as paths
	mode     os.FileMode    // default mode
	optional bool           // the object and its keys need not exist
}

// addConfigMap adds the keys that k selects of a ConfigMap to payload. A missing ConfigMap or key is an error
// unless k is optional.
func addConfigMap(ctx context.Context, objects Objects, payload Payload, namespace, name string, k keys) error {
	cm, err := objects.ConfigMap(ctx, namespace, name)
	if err != nil {
		if !(apierrors.IsNotFound(err) && k.optional) {
			return err
		}
		cm = &v1.ConfigMap{}
	}
	data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	for key, v := range cm.Data {
		data[key] = []byte(v)
	}
	maps.Copy(data, cm.BinaryData)
	return k.add(payload, data, "configmap references non-existent config key: %s")
}

// addSecret adds the keys that k selects of a Secret to payload. A missing Secret or key is an error unless k
// is optional.
func addSecret(ctx context.Context, objects Objects, payload Payload, namespace, name string, k keys) error {
	s, err := objects.Secret(ctx, namespace, name)
	if err != nil {
		if !(apierrors.IsNotFound(err) && k.optional) {
			return err
		}
		s = &v1.Secret{}
	}
	return k.add(payload, s.Data, "references non-existent secret key: %s")
}

// add adds the selected keys of data to payload. missing is the format of the error for a selected key that
// data does not have, unless k is optional.
func (k keys) add(payload Payload, data map[string][]byte, missing string) error {
	if len(k.items) == 0 {
		for key, v := range data {
			payload[key] = File{Data: v, Mode: k.mode}
		}
		return nil
	}
	for _, item := range k.items {
		v, ok := data[item.Key]
		if !ok {
			if k.optional {
				continue
			}
			return fmt.Errorf(missing, item.Key)
		}
		f := File{Data: v, Mode: k.mode}
		if item.Mode != nil {
			f.Mode = os.FileMode(*item.Mode)
		}
		payload[item.Path] = f
	}
	return nil
}

// addDownward adds the fields of the pod that items select to payload. def is the default mode. allocatable
// returns the node's allocatable resources; it may be nil.
func addDownward(payload Payload, pod *v1.Pod, items []v1.DownwardAPIVolumeFile, def os.FileMode, allocatable func() v1.ResourceList) error {
	for i := range items {
		item := &items[i]
		f := File{Mode: def}
		if item.Mode != nil {
			f.Mode = os.FileMode(*item.Mode)
		}
		var value string
		var err error
		switch {
		case item.FieldRef != nil:
			value, err = env.Field(pod, item.FieldRef.FieldPath, env.Addresses{})
		case item.ResourceFieldRef != nil:
			c := env.Container(pod, item.ResourceFieldRef.ContainerName)
			if c == nil {
				err = fmt.Errorf("container %s not found", item.ResourceFieldRef.ContainerName)
				break
			}
			var list v1.ResourceList
			if allocatable != nil {
				list = allocatable()
			}
			value, err = env.Resource(item.ResourceFieldRef, pod, c, list)
		}
		if err != nil {
			return err
		}
		f.Data = []byte(value)
		payload[item.Path] = f
	}
	return nil
}

// ownFile returns a file with a credential, such as a token. Its owner is user or, if that is nil, the user
// that all containers run as. With an owner or an fsGroup the mode is 0600, otherwise def.
func ownFile(pod *v1.Pod, data []byte, user *int64, def os.FileMode) File {
	f := File{Data: data, Mode: def, User: user}
	if f.User == nil {
		f.User = fsUser(pod)
	}
	if f.User != nil || FSGroup(pod) != nil {
		f.Mode = 0o600
	}
	return f
}

// fsUser returns the user that all init and app containers run as, or nil if they differ or one does not
// specify it.
func fsUser(pod *v1.Pod) *int64 {
	var def *int64
	if pod.Spec.SecurityContext != nil {
		def = pod.Spec.SecurityContext.RunAsUser
	}
	var user *int64
	same := true
	check := func(list []v1.Container) {
		for i := range list {
			u := def
			if sc := list[i].SecurityContext; sc != nil && sc.RunAsUser != nil {
				u = sc.RunAsUser
			}
			if u == nil || (user != nil && *user != *u) {
				same = false
				continue
			}
			user = u
		}
	}
	check(pod.Spec.InitContainers)
	check(pod.Spec.Containers)
	if !same {
		return nil
	}
	return user
}

// mode returns the mode of files of a volume, which defaults to 0644.
func mode(m *int32) os.FileMode {
	if m == nil {
		return 0o644
	}
	return os.FileMode(*m)
}

// Image is the Type of image volumes, whose content is a container image.
type Image struct{}

// Name returns the name of the directory of image volumes in a pod's volumes directory.
func (Image) Name() string { return "kubernetes.io~image" }

// Is reports whether v is an image volume.
func (Image) Is(v *v1.Volume) bool { return v.Image != nil }

// SetUp sets up nothing on the host, because the container runtime pulls and mounts the image.
func (Image) SetUp(_ context.Context, r Request) (Result, error) {
	return Result{Image: r.Volume.Image, ReadOnly: true}, nil
}
