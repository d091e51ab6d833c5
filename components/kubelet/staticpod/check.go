package staticpod

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"hyperkube/internal/api/core/pod"
)

// check tells why a manifest's pod cannot be run: it is not a valid one, or it wants
// objects of an API server, which static pods run without.
func check(p *v1.Pod) error {
	if errs := pod.Kind().Validate(context.Background(), p); len(errs) > 0 {
		return fmt.Errorf("invalid pod: %v", errs)
	}
	if what := refers(p); what != "" {
		return fmt.Errorf("static pods may not reference %s", what)
	}
	return nil
}

// refers names the first kind of objects of the API that a pod refers to; empty: it
// refers to none.
func refers(p *v1.Pod) string {
	if p.Spec.ServiceAccountName != "" {
		return "serviceaccounts"
	}
	secrets, configMaps := len(p.Spec.ImagePullSecrets) > 0, false
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			for _, from := range list[i].EnvFrom {
				secrets, configMaps = secrets || from.SecretRef != nil, configMaps || from.ConfigMapRef != nil
			}
			for _, e := range list[i].Env {
				if from := e.ValueFrom; from != nil {
					secrets, configMaps = secrets || from.SecretKeyRef != nil, configMaps || from.ConfigMapKeyRef != nil
				}
			}
		}
	}
	switch {
	case secrets:
		return "secrets"
	case configMaps:
		return "configmaps"
	case len(p.Spec.ResourceClaims) > 0:
		return "resourceclaims"
	}
	for i := range p.Spec.Volumes {
		if what := source(&p.Spec.Volumes[i].VolumeSource); what != "" {
			return what
		}
	}
	return ""
}

// source names what a volume has from the API; empty: nothing.
func source(v *v1.VolumeSource) string {
	switch {
	case v.ConfigMap != nil:
		return "configmaps (via configmap volumes)"
	case v.Secret != nil:
		return "secrets (via secret volumes)"
	case v.CSI != nil:
		return "csidrivers (via CSI volumes)"
	case v.Glusterfs != nil:
		return "endpoints (via glusterFS volumes)"
	case v.PersistentVolumeClaim != nil:
		return "persistentvolumeclaims"
	case v.Ephemeral != nil:
		return "persistentvolumeclaims (via ephemeral volumes)"
	case v.AzureFile != nil:
		return "secrets (via azureFile volumes)"
	case v.Projected == nil:
		return ""
	}
	for _, s := range v.Projected.Sources {
		switch {
		case s.ConfigMap != nil:
			return "configmaps (via projected volumes)"
		case s.Secret != nil:
			return "secrets (via projected volumes)"
		case s.ServiceAccountToken != nil:
			return "serviceaccounts (via projected volumes)"
		case s.ClusterTrustBundle != nil:
			return "clustertrustbundles"
		case s.PodCertificate != nil:
			return "podcertificates"
		}
	}
	return ""
}
