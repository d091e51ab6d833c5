package pod

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/validate"
)

// copyAppArmor copies the AppArmor profiles in the deprecated annotations of a new pod to the
// fields that replaced them, because kubelets ignore the annotations. It returns warnings for the
// user.
//
// https://github.com/kubernetes/enhancements/tree/master/keps/sig-node/24-apparmor#version-skew-strategy
func copyAppArmor(p *corev1.Pod) []string {
	if len(p.Annotations) == 0 || p.Spec.OS != nil && p.Spec.OS.Name == corev1.Windows {
		return nil
	}
	var inherited *corev1.AppArmorProfile
	if p.Spec.SecurityContext != nil {
		inherited = p.Spec.SecurityContext.AppArmorProfile
	}
	var out []string
	eachContainer(&p.Spec, nil, func(ctr *corev1.Container, _ *field.Path) {
		key := corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + ctr.Name
		value, ok := p.Annotations[key]
		if !ok || ctr.SecurityContext != nil && ctr.SecurityContext.AppArmorProfile != nil {
			return
		}
		profile := parseAppArmor(value)
		if profile != nil && apiequality.Semantic.DeepEqual(profile, inherited) {
			return
		}
		if profile != nil {
			if ctr.SecurityContext == nil {
				ctr.SecurityContext = &corev1.SecurityContext{}
			}
			ctr.SecurityContext.AppArmorProfile = profile
		}
		out = append(out, fmt.Sprintf("%s: deprecated since v1.30; use the \"appArmorProfile\" field instead", field.NewPath("metadata", "annotations").Key(key)))
	})
	return out
}

// parseAppArmor parses the value of an AppArmor annotation. It returns nil if the profile is invalid.
func parseAppArmor(value string) *corev1.AppArmorProfile {
	out := &corev1.AppArmorProfile{}
	local, isLocal := strings.CutPrefix(value, corev1.DeprecatedAppArmorBetaProfileNamePrefix)
	switch {
	case value == corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
		out.Type = corev1.AppArmorProfileTypeUnconfined
	case value == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		out.Type = corev1.AppArmorProfileTypeRuntimeDefault
	case isLocal:
		out.Type, out.LocalhostProfile = corev1.AppArmorProfileTypeLocalhost, &local
	default:
		return nil
	}
	var e validate.Errors
	if checkAppArmor(&e, out, nil); len(e.List) > 0 {
		return nil
	}
	return out
}
