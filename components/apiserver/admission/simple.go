package admission

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
)

// all contains every admission operation, for plugins that handle all requests.
var all = operations{admission.Create, admission.Update, admission.Delete, admission.Connect}

// alwaysAdmit is the plugin AlwaysAdmit. It does nothing; it exists so that the flags accept its
// name.
type alwaysAdmit struct{ operations }

// newAlwaysAdmit creates the plugin AlwaysAdmit. It never fails.
func newAlwaysAdmit(*Config) (admission.Interface, error) { return alwaysAdmit{all}, nil }

// Validate admits every request.
func (alwaysAdmit) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	return nil
}

// alwaysDeny is the plugin AlwaysDeny. It rejects all requests that pass admission: writes and connections such as
// exec.
type alwaysDeny struct{ operations }

// newAlwaysDeny creates the plugin AlwaysDeny. It never fails.
func newAlwaysDeny(*Config) (admission.Interface, error) { return alwaysDeny{all}, nil }

// Validate rejects every request.
func (alwaysDeny) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return admission.NewForbidden(a, errors.New("admission control is denying all modifications"))
}

// alwaysPullImages is the plugin AlwaysPullImages. It sets the pull policy of all images to Always,
// so that pods can use private images only with valid registry credentials.
type alwaysPullImages struct{ operations }

// newAlwaysPullImages creates the plugin AlwaysPullImages. It never fails.
func newAlwaysPullImages(*Config) (admission.Interface, error) {
	return alwaysPullImages{onCreateUpdate}, nil
}

// Admit sets the pull policy of all containers and image volumes of a new or updated pod, also when ephemeral
// containers are added.
func (alwaysPullImages) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok || a.GetResource().Resource != "pods" || a.GetSubresource() != "" && a.GetSubresource() != "ephemeralcontainers" {
		return nil
	}
	for i := range pod.Spec.InitContainers {
		pod.Spec.InitContainers[i].ImagePullPolicy = corev1.PullAlways
	}
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].ImagePullPolicy = corev1.PullAlways
	}
	for i := range pod.Spec.EphemeralContainers {
		pod.Spec.EphemeralContainers[i].ImagePullPolicy = corev1.PullAlways
	}
	for i := range pod.Spec.Volumes {
		if image := pod.Spec.Volumes[i].Image; image != nil {
			image.PullPolicy = corev1.PullAlways
		}
	}
	return nil
}

// denyExternalIPs is the plugin DenyServiceExternalIPs. It rejects new external IPs of Services.
type denyExternalIPs struct{ operations }

// newDenyExternalIPs creates the plugin DenyServiceExternalIPs. It never fails.
func newDenyExternalIPs(*Config) (admission.Interface, error) {
	return denyExternalIPs{onCreateUpdate}, nil
}

// Validate rejects a new or updated Service with an external IP that it did not have before.
func (denyExternalIPs) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	svc, ok := a.GetObject().(*corev1.Service)
	if !ok || !isRequestFor(a, "", "services") {
		return nil
	}
	had := map[string]bool{}
	if old, ok := a.GetOldObject().(*corev1.Service); ok {
		for _, ip := range old.Spec.ExternalIPs {
			had[ip] = true
		}
	}
	for _, ip := range svc.Spec.ExternalIPs {
		if !had[ip] {
			return forbid(a, "Use of external IPs is denied by admission control")
		}
	}
	return nil
}
