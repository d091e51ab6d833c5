package admission

import (
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestAppArmorEnforceable(t *testing.T) {
	with, without := t.TempDir(), t.TempDir()
	for _, dir := range []string{"kernel/security/apparmor", "module/apparmor/parameters"} {
		if err := os.MkdirAll(filepath.Join(with, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(with, "module/apparmor/parameters/enabled"), []byte("Y\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	profile := func(kind v1.AppArmorProfileType, name string) *v1.AppArmorProfile {
		return &v1.AppArmorProfile{Type: kind, LocalhostProfile: &name}
	}
	const off = "AppArmor is not enabled on the host"
	for name, tc := range map[string]struct {
		pod, container *v1.AppArmorProfile
		want           [2]string // errors without AppArmor, and with it
	}{
		"no profile":                  {},
		"unconfined":                  {pod: profile(v1.AppArmorProfileTypeUnconfined, "")},
		"runtime default":             {pod: profile(v1.AppArmorProfileTypeRuntimeDefault, ""), want: [2]string{off}},
		"profile of a container":      {container: profile(v1.AppArmorProfileTypeLocalhost, "x"), want: [2]string{off}},
		"container without a profile": {pod: profile(v1.AppArmorProfileTypeRuntimeDefault, ""), container: profile(v1.AppArmorProfileTypeUnconfined, ""), want: [2]string{off}},
	} {
		pod := &v1.Pod{Spec: v1.PodSpec{
			SecurityContext: &v1.PodSecurityContext{AppArmorProfile: tc.pod},
			Containers:      []v1.Container{{SecurityContext: &v1.SecurityContext{AppArmorProfile: tc.container}}},
		}}
		for i, sys := range []string{without, with} {
			got := ""
			if err := checkAppArmor(pod, sys); err != nil {
				got = err.Error()
			}
			if got != tc.want[i] {
				t.Errorf("%s: %q, want %q", name, got, tc.want[i])
			}
		}
	}
	if err := checkAppArmor(&v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{SecurityContext: &v1.SecurityContext{AppArmorProfile: profile(v1.AppArmorProfileTypeLocalhost, " ")}}}}}, with); err == nil {
		t.Error("a profile without a name")
	}
}
