package pod

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// DropDisabled clears the fields of disabled features, unless the stored spec uses them. old is the
// spec of the stored object, nil on create.
func DropDisabled(spec, old *corev1.PodSpec) {
	for _, f := range disabled {
		if old == nil || !f(old, false) {
			f(spec, true)
		}
	}
	if e := old; e == nil || e.SchedulingGroup == nil {
		spec.SchedulingGroup = nil
	}
	if e := old; e == nil || len(e.EvictionResponders) == 0 {
		spec.EvictionResponders = nil
	}
}

// disabled contains a function for each disabled feature, whose feature gate is named in the
// comment. The function reports whether spec uses a field of the feature, and clears these fields
// if drop is set.
var disabled = []func(spec *corev1.PodSpec, drop bool) bool{
	// EmptyDirVolumeMode
	func(spec *corev1.PodSpec, drop bool) (used bool) {
		for i := range spec.Volumes {
			if v := spec.Volumes[i].EmptyDir; v != nil {
				used = clearField(&v.Mode, drop) || used
			}
		}
		return used
	},
	// VolumeBindMountOptions
	func(spec *corev1.PodSpec, drop bool) (used bool) {
		eachContainer(spec, nil, func(ctr *corev1.Container, _ *field.Path) {
			for i := range ctr.VolumeMounts {
				used = used || len(ctr.VolumeMounts[i].BindMountOptions) > 0
				if drop {
					ctr.VolumeMounts[i].BindMountOptions = nil
				}
			}
		})
		return used
	},
	// GRPCContainerProbeTLS
	func(spec *corev1.PodSpec, drop bool) (used bool) {
		eachProbe(spec, func(p *corev1.Probe) {
			if p.GRPC != nil {
				used = clearField(&p.GRPC.Mode, drop) || used
			}
		})
		return used
	},
	// HTTPProbeProtocol
	func(spec *corev1.PodSpec, drop bool) (used bool) {
		eachProbe(spec, func(p *corev1.Probe) {
			if p.HTTPGet != nil {
				used = clearField(&p.HTTPGet.Protocol, drop) || used
			}
		})
		return used
	},
	// ContainerStopSignals. A lifecycle without other fields is cleared too.
	func(spec *corev1.PodSpec, drop bool) (used bool) {
		eachContainer(spec, nil, func(ctr *corev1.Container, _ *field.Path) {
			if ctr.Lifecycle == nil || !clearField(&ctr.Lifecycle.StopSignal, drop) {
				return
			}
			used = true
			if drop && *ctr.Lifecycle == (corev1.Lifecycle{}) {
				ctr.Lifecycle = nil
			}
		})
		return used
	},
	// AtomicWriteVolumeUserFields
	func(spec *corev1.PodSpec, drop bool) (used bool) {
		for _, user := range fileUsers(spec) {
			used = clearField(user, drop) || used
		}
		return used
	},
}

// clearField reports whether the pointer field f is set, and sets it to nil if drop is set.
func clearField[T any](f **T, drop bool) bool {
	set := *f != nil
	if drop {
		*f = nil
	}
	return set
}

// eachProbe calls visit for all probes of all containers of a pod.
func eachProbe(spec *corev1.PodSpec, visit func(*corev1.Probe)) {
	eachContainer(spec, nil, func(ctr *corev1.Container, _ *field.Path) {
		for _, p := range []*corev1.Probe{ctr.LivenessProbe, ctr.ReadinessProbe, ctr.StartupProbe} {
			if p != nil {
				visit(p)
			}
		}
	})
}

// fileUsers returns pointers to the fields of spec that specify the owners of files in volumes.
func fileUsers(spec *corev1.PodSpec) (users []**int64) {
	keys := func(items []corev1.KeyToPath) {
		for i := range items {
			users = append(users, &items[i].User)
		}
	}
	downward := func(items []corev1.DownwardAPIVolumeFile) {
		for i := range items {
			users = append(users, &items[i].User)
		}
	}
	for i := range spec.Volumes {
		switch v := &spec.Volumes[i]; {
		case v.Secret != nil:
			users = append(users, &v.Secret.DefaultUser)
			keys(v.Secret.Items)
		case v.ConfigMap != nil:
			users = append(users, &v.ConfigMap.DefaultUser)
			keys(v.ConfigMap.Items)
		case v.DownwardAPI != nil:
			users = append(users, &v.DownwardAPI.DefaultUser)
			downward(v.DownwardAPI.Items)
		case v.Projected != nil:
			users = append(users, &v.Projected.DefaultUser)
			for _, s := range v.Projected.Sources {
				switch {
				case s.Secret != nil:
					keys(s.Secret.Items)
				case s.DownwardAPI != nil:
					downward(s.DownwardAPI.Items)
				case s.ConfigMap != nil:
					keys(s.ConfigMap.Items)
				case s.ServiceAccountToken != nil:
					users = append(users, &s.ServiceAccountToken.User)
				case s.ClusterTrustBundle != nil:
					users = append(users, &s.ClusterTrustBundle.User)
				case s.PodCertificate != nil:
					users = append(users, &s.PodCertificate.User)
				}
			}
		}
	}
	return slices.Clip(users)
}
