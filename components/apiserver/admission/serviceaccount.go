package admission

import (
	"context"
	"strconv"
	"strings"
	"time"

	"hyperkube/internal/api/podrefs"
	"hyperkube/internal/base/broadcast"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

const (
	defaultAccount   = "default"
	tokenVolume      = "kube-api-access"
	tokenMountPath   = "/var/run/secrets/kubernetes.io/serviceaccount"
	tokenExpiration  = 60*60 + 7 // seconds; the odd number marks tokens that admission added
	rootCAConfigMap  = "kube-root-ca.crt"
	accountTimeout   = 1500 * time.Millisecond
	enforceMountable = "kubernetes.io/enforce-mountable-secrets"
)

// serviceAccounts is the plugin ServiceAccount. It sets the service account of new pods and mounts its token into
// their containers, unless the pod or the account disables that.
type serviceAccounts struct {
	operations
	lister corelisters.ServiceAccountLister
	kube   kubernetes.Interface

	// added wakes up requests that wait for a service account whenever the informer reports a new one.
	added broadcast.Broadcast
}

// newServiceAccount creates the plugin ServiceAccount. It returns an error if the informer of cfg has been stopped.
func newServiceAccount(cfg *Config) (admission.Interface, error) {
	inf := cfg.Informers.Core().V1().ServiceAccounts()
	p := &serviceAccounts{operations: onCreateUpdate, lister: inf.Lister(), kube: cfg.Kube}
	_, err := inf.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { p.added.Send() }})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// podToAdmit returns the pod of a request that creates a pod or adds ephemeral containers to one,
// and false for other requests.
func (p *serviceAccounts) podToAdmit(a admission.Attributes) (*corev1.Pod, bool) {
	r := a.GetResource()
	if r.Group != "" || r.Resource != "pods" {
		return nil, false
	}
	switch a.GetOperation() {
	case admission.Create:
		if a.GetSubresource() != "" {
			return nil, false
		}
	case admission.Update:
		if a.GetSubresource() != "ephemeralcontainers" {
			return nil, false
		}
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	return pod, ok
}

// Admit sets the service account of a new pod, "default" if the pod names none, mounts its token unless that is
// disabled, and sets the account's image pull secrets if the pod has none. It does not change mirror pods. It then
// validates the pod.
func (p *serviceAccounts) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	pod, ok := p.podToAdmit(a)
	if !ok || a.GetOperation() != admission.Create {
		return nil
	}
	// A mirror pod represents a pod that already runs on the node. If admission changed it, the
	// kubelet would replace it.
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return p.Validate(ctx, a, o)
	}
	spec := &pod.Spec
	if spec.ServiceAccountName == "" {
		spec.ServiceAccountName = spec.DeprecatedServiceAccount
	}
	if spec.ServiceAccountName == "" {
		spec.ServiceAccountName = defaultAccount
	}
	// The published type has two fields for the name.
	spec.DeprecatedServiceAccount = spec.ServiceAccountName
	sa, err := p.account(ctx, a.GetNamespace(), spec.ServiceAccountName)
	if err != nil {
		return forbid(a, "error looking up service account %s/%s: %w", a.GetNamespace(), spec.ServiceAccountName, err)
	}
	if automounts(sa, pod) {
		mountToken(spec)
	}
	if len(spec.ImagePullSecrets) == 0 && len(sa.ImagePullSecrets) > 0 {
		spec.ImagePullSecrets = append([]corev1.LocalObjectReference(nil), sa.ImagePullSecrets...)
	}
	return p.Validate(ctx, a, o)
}

// Validate rejects a new pod or new ephemeral containers if the service account does not exist, or if the pod uses
// Secrets that the account does not list although its annotation requires that. A mirror pod must not refer to a
// service account or to Secrets.
func (p *serviceAccounts) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := p.podToAdmit(a)
	if !ok {
		return nil
	}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return validateMirror(a, pod)
	}
	if pod.Spec.ServiceAccountName == "" {
		return forbid(a, "no service account specified for pod %s/%s", a.GetNamespace(), pod.Name)
	}
	sa, err := p.account(ctx, a.GetNamespace(), pod.Spec.ServiceAccountName)
	if err != nil {
		return forbid(a, "error looking up service account %s/%s: %w", a.GetNamespace(), pod.Spec.ServiceAccountName, err)
	}
	if enforce, _ := strconv.ParseBool(sa.Annotations[enforceMountable]); enforce {
		return limitSecrets(a, sa, pod)
	}
	return nil
}

// validateMirror rejects a mirror pod that refers to a service account, Secrets, or volumes with tokens, certificates
// or trust bundles. Otherwise a client with the credentials of a node could get them for any pod.
func validateMirror(a admission.Attributes, pod *corev1.Pod) error {
	if pod.Spec.ServiceAccountName != "" {
		return forbid(a, "a mirror pod may not reference service accounts")
	}
	for kind := range podrefs.Of(pod) {
		if kind == podrefs.Secret {
			return forbid(a, "a mirror pod may not reference secrets")
		}
	}
	for i := range pod.Spec.Volumes {
		projected := pod.Spec.Volumes[i].Projected
		if projected == nil {
			continue
		}
		for j := range projected.Sources {
			switch s := &projected.Sources[j]; {
			case s.ServiceAccountToken != nil:
				return forbid(a, "a mirror pod may not use ServiceAccountToken volume projections")
			case s.ClusterTrustBundle != nil:
				return forbid(a, "a mirror pod may not use ClusterTrustBundle volume projections")
			case s.PodCertificate != nil:
				return forbid(a, "a mirror pod may not use PodCertificate volume projections")
			}
		}
	}
	return nil
}

// limitSecrets rejects a pod that uses Secrets, in volumes, environment variables or for pulling images, which its
// service account does not list. The caller calls it only for accounts with the annotation
// kubernetes.io/enforce-mountable-secrets.
func limitSecrets(a admission.Attributes, sa *corev1.ServiceAccount, pod *corev1.Pod) error {
	mountable, pullable := map[string]bool{}, map[string]bool{}
	for _, s := range sa.Secrets {
		mountable[s.Name] = true
	}
	for _, s := range sa.ImagePullSecrets {
		pullable[s.Name] = true
	}
	for _, v := range pod.Spec.Volumes {
		if v.Secret != nil && !mountable[v.Secret.SecretName] {
			return forbid(a, "volume with secret.secretName=%q is not allowed because service account %s does not reference that secret", v.Secret.SecretName, sa.Name)
		}
	}
	check := func(what, name string, env []corev1.EnvVar, from []corev1.EnvFromSource) error {
		for _, e := range env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil && !mountable[e.ValueFrom.SecretKeyRef.Name] {
				return forbid(a, "%s %s with envVar %s referencing secret.secretName=%q is not allowed because service account %s does not reference that secret",
					what, name, e.Name, e.ValueFrom.SecretKeyRef.Name, sa.Name)
			}
		}
		for _, f := range from {
			if f.SecretRef != nil && !mountable[f.SecretRef.Name] {
				return forbid(a, "%s %s with envFrom referencing secret.secretName=%q is not allowed because service account %s does not reference that secret",
					what, name, f.SecretRef.Name, sa.Name)
			}
		}
		return nil
	}
	for _, c := range pod.Spec.InitContainers {
		if err := check("init container", c.Name, c.Env, c.EnvFrom); err != nil {
			return err
		}
	}
	for _, c := range pod.Spec.Containers {
		if err := check("container", c.Name, c.Env, c.EnvFrom); err != nil {
			return err
		}
	}
	for _, c := range pod.Spec.EphemeralContainers {
		if err := check("ephemeral container", c.Name, c.Env, c.EnvFrom); err != nil {
			return err
		}
	}
	for i, s := range pod.Spec.ImagePullSecrets {
		if !pullable[s.Name] {
			return forbid(a, "imagePullSecrets[%d].name=%q is not allowed because service account %s does not reference that imagePullSecret", i, s.Name, sa.Name)
		}
	}
	return nil
}

// account returns a service account, from the API if the informer does not have it, or a NotFound error. A controller
// creates the account "default" shortly after the namespace, so account waits up to accountTimeout for that one.
func (p *serviceAccounts) account(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	if sa, err := p.lister.ServiceAccounts(namespace).Get(name); err == nil {
		return sa, nil
	}
	var timeout <-chan time.Time
	for {
		added := p.added.Next()
		sa, err := p.kube.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return sa, err
		}
		err = apierrors.NewNotFound(corev1.Resource("serviceaccount"), name)
		if name != defaultAccount {
			return nil, err
		}
		if timeout == nil {
			timer := time.NewTimer(accountTimeout)
			defer timer.Stop()
			timeout = timer.C
		}
		select {
		case <-added:
		case <-timeout:
			return nil, err
		case <-ctx.Done():
			return nil, err
		}
	}
}

// automounts reports whether a pod gets a volume with the token of its service account. The field
// automountServiceAccountToken of the pod takes precedence over that of the account. If neither is set, the pod gets
// one.
func automounts(sa *corev1.ServiceAccount, pod *corev1.Pod) bool {
	if pod.Spec.AutomountServiceAccountToken != nil {
		return *pod.Spec.AutomountServiceAccountToken
	}
	return sa.AutomountServiceAccountToken == nil || *sa.AutomountServiceAccountToken
}

// mountToken mounts the token volume into all containers and init containers that have no other mount at its path,
// and adds the volume to the pod if one was mounted. It uses an existing volume whose name begins with
// kube-api-access-.
func mountToken(spec *corev1.PodSpec) {
	name, there := "", false
	for i := range spec.Volumes {
		if strings.HasPrefix(spec.Volumes[i].Name, tokenVolume+"-") {
			name, there = spec.Volumes[i].Name, true
			break
		}
	}
	if name == "" {
		name = tokenVolume + "-" + rand.String(5)
	}
	needed := false
	mount := func(containers []corev1.Container) {
	next:
		for i := range containers {
			c := &containers[i]
			for j := range c.VolumeMounts {
				if c.VolumeMounts[j].MountPath == tokenMountPath {
					continue next
				}
			}
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, ReadOnly: true, MountPath: tokenMountPath})
			needed = true
		}
	}
	mount(spec.InitContainers)
	mount(spec.Containers)
	if needed && !there {
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: name, VolumeSource: tokenSource()})
	}
}

// tokenSource returns the projected volume source for the token of the pod's service account, the
// CA bundle of the API server's certificate, and the namespace.
func tokenSource() corev1.VolumeSource {
	mode, expiration := corev1.ProjectedVolumeSourceDefaultMode, int64(tokenExpiration)
	return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: &mode,
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &expiration}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: rootCAConfigMap},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
				Path:     "namespace",
				FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"},
			}}}},
		},
	}}
}
