package pod

import (
	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"

	"hyperkube/internal/api"
	"hyperkube/internal/api/core/volume"
	"hyperkube/internal/api/validate"
)

// defaultSpec sets the defaults of the spec of a pod or pod template. Defaults for pods only, such
// as requests from limits, are in Default, because a template is stored as its author wrote it.
func defaultSpec(spec *corev1.PodSpec) {
	api.SetIfZero(&spec.DNSPolicy, corev1.DNSClusterFirst)
	api.SetIfZero(&spec.RestartPolicy, corev1.RestartPolicyAlways)
	if spec.SecurityContext == nil {
		spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	api.SetDefault(&spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	api.SetIfZero(&spec.SchedulerName, corev1.DefaultSchedulerName)
	syncServiceAccount(spec)
	for i := range spec.Volumes {
		defaultVolume(&spec.Volumes[i].VolumeSource)
	}
	for i := range spec.InitContainers {
		defaultContainer(&spec.InitContainers[i])
	}
	for i := range spec.Containers {
		defaultContainer(&spec.Containers[i])
	}
	for i := range spec.EphemeralContainers {
		defaultContainer((*corev1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	validate.RoundUp(spec.Overhead)
	if spec.Resources != nil {
		defaultResources(spec.Resources)
	}
}

// syncServiceAccount sets the service account name and its deprecated alias to the same value. The
// name takes precedence.
func syncServiceAccount(spec *corev1.PodSpec) {
	api.SetIfZero(&spec.ServiceAccountName, spec.DeprecatedServiceAccount)
	spec.DeprecatedServiceAccount = spec.ServiceAccountName
}

func defaultResources(r *corev1.ResourceRequirements) {
	validate.RoundUp(r.Limits)
	validate.RoundUp(r.Requests)
}

// defaultContainer sets the defaults of a container, such as the pull policy of its image and the values of its probes.
func defaultContainer(c *corev1.Container) {
	for i := range c.Ports {
		api.SetIfZero(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil {
			if from.FieldRef != nil {
				api.SetIfZero(&from.FieldRef.APIVersion, "v1")
			}
			if from.FileKeyRef != nil {
				api.SetDefault(&from.FileKeyRef.Optional, false)
			}
		}
	}
	defaultResources(&c.Resources)
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if p != nil {
			defaultProbe(p)
		}
	}
	if c.Lifecycle != nil {
		for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil && h.HTTPGet != nil {
				defaultHTTPGet(h.HTTPGet)
			}
		}
	}
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = pullPolicy(c.Image)
	}
	api.SetIfZero(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	api.SetIfZero(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
}

// defaultProbe sets the missing timing and thresholds of a probe, and the defaults of its HTTP or gRPC request.
func defaultProbe(p *corev1.Probe) {
	api.SetIfZero(&p.TimeoutSeconds, 1)
	api.SetIfZero(&p.PeriodSeconds, 10)
	api.SetIfZero(&p.SuccessThreshold, 1)
	api.SetIfZero(&p.FailureThreshold, 3)
	if p.HTTPGet != nil {
		defaultHTTPGet(p.HTTPGet)
	}
	if p.GRPC != nil {
		api.SetDefault(&p.GRPC.Service, "")
	}
}

func defaultHTTPGet(g *corev1.HTTPGetAction) {
	api.SetIfZero(&g.Path, "/")
	api.SetIfZero(&g.Scheme, corev1.URISchemeHTTP)
}

// pullPolicy returns the default pull policy of an image: Always if its tag is latest, explicitly
// or implicitly. A digest without a tag is not latest. Invalid image names are rejected later.
func pullPolicy(image string) corev1.PullPolicy {
	name, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return corev1.PullIfNotPresent
	}
	tagged, hasTag := name.(reference.Tagged)
	_, hasDigest := name.(reference.Digested)
	if hasTag && tagged.Tag() == "latest" || !hasTag && !hasDigest {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

// defaultVolume sets the defaults of a volume. A volume without a source becomes an emptyDir.
func defaultVolume(v *corev1.VolumeSource) {
	if *v == (corev1.VolumeSource{}) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	if v.HostPath != nil {
		volume.DefaultHostPath(v.HostPath)
	}
	if v.Secret != nil {
		api.SetDefault(&v.Secret.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
	}
	if v.ConfigMap != nil {
		api.SetDefault(&v.ConfigMap.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
	}
	if v.DownwardAPI != nil {
		api.SetDefault(&v.DownwardAPI.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
		defaultDownwardFiles(v.DownwardAPI.Items)
	}
	if v.Projected != nil {
		api.SetDefault(&v.Projected.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
		for i := range v.Projected.Sources {
			src := &v.Projected.Sources[i]
			if src.DownwardAPI != nil {
				defaultDownwardFiles(src.DownwardAPI.Items)
			}
			if src.ServiceAccountToken != nil {
				api.SetDefault(&src.ServiceAccountToken.ExpirationSeconds, 60*60)
			}
		}
	}
	if v.Ephemeral != nil {
		if t := v.Ephemeral.VolumeClaimTemplate; t != nil {
			volume.DefaultClaimSpec(&t.Spec)
		}
	}
	if v.Image != nil {
		api.SetIfZero(&v.Image.PullPolicy, pullPolicy(v.Image.Reference))
	}
	if v.ISCSI != nil {
		volume.DefaultISCSI(&v.ISCSI.ISCSIInterface)
	}
	if v.RBD != nil {
		volume.DefaultRBD(&v.RBD.RBDPool, &v.RBD.RadosUser, &v.RBD.Keyring)
	}
	if v.AzureDisk != nil {
		volume.DefaultAzureDisk(v.AzureDisk)
	}
	if v.ScaleIO != nil {
		volume.DefaultScaleIO(&v.ScaleIO.StorageMode, &v.ScaleIO.FSType)
	}
}

// defaultDownwardFiles sets the API version of field references to v1 if it is missing.
func defaultDownwardFiles(files []corev1.DownwardAPIVolumeFile) {
	for i := range files {
		if files[i].FieldRef != nil {
			api.SetIfZero(&files[i].FieldRef.APIVersion, "v1")
		}
	}
}
