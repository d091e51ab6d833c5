package pod

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestCopyAppArmor(t *testing.T) {
	const warns = `metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: deprecated since v1.30; use the "appArmorProfile" field instead`
	for name, test := range map[string]struct {
		annotation, spec, want string
		warns                  bool
	}{
		"unconfined":                     {"unconfined", "{containers: [{name: c}]}", "Unconfined", true},
		"runtime's":                      {"runtime/default", "{containers: [{name: c}]}", "RuntimeDefault", true},
		"node's":                         {"localhost/a", "{containers: [{name: c}]}", "Localhost a", true},
		"localhost profile without name": {"localhost/", "{containers: [{name: c}]}", "", true},
		"empty":                          {"", "{containers: [{name: c}]}", "", true},
		"unknown":                        {"foo", "{containers: [{name: c}]}", "", true},
		"init container":                 {"unconfined", "{containers: [{name: d}], initContainers: [{name: c}]}", "Unconfined", true},
		"other container":                {"unconfined", "{containers: [{name: d}]}", "", false},
		"field wins":                     {"unconfined", "{containers: [{name: c, securityContext: {appArmorProfile: {type: RuntimeDefault}}}]}", "RuntimeDefault", false},
		"same as the pod":                {"unconfined", "{securityContext: {appArmorProfile: {type: Unconfined}}, containers: [{name: c}]}", "", false},
		"different from the pod":         {"unconfined", "{securityContext: {appArmorProfile: {type: RuntimeDefault}}, containers: [{name: c}]}", "Unconfined", true},
		"windows":                        {"unconfined", "{os: {name: windows}, containers: [{name: c}]}", "", false},
	} {
		p := parse(t, "{spec: "+test.spec+"}")
		p.Annotations = map[string]string{corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + "c": test.annotation}
		warnings := copyAppArmor(p)
		if len(warnings) == 1 != test.warns || test.warns && warnings[0] != warns {
			t.Errorf("%s: warned %q", name, warnings)
		}
		got := ""
		for _, ctr := range append(p.Spec.InitContainers, p.Spec.Containers...) {
			if ctr.SecurityContext != nil && ctr.SecurityContext.AppArmorProfile != nil {
				got += string(ctr.SecurityContext.AppArmorProfile.Type)
				if local := ctr.SecurityContext.AppArmorProfile.LocalhostProfile; local != nil {
					got += " " + *local
				}
			}
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
