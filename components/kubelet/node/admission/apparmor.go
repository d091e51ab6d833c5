package admission

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/pod/pods"
)

// admitAppArmor returns the rejection of a pod that requires an AppArmor profile if AppArmor is unavailable, so
// that no container runs less confined than specified. It returns nil if the pod may run, and for a pod that is
// already beyond the phase Pending.
//
// https://kubernetes.io/docs/tutorials/security/apparmor/
func admitAppArmor(pod *v1.Pod) *pods.Verdict {
	if pod.Status.Phase != "" && pod.Status.Phase != v1.PodPending {
		return nil
	}
	if err := checkAppArmor(pod, "/sys"); err != nil {
		return &pods.Verdict{Reason: "AppArmor", Message: "Cannot enforce AppArmor: " + err.Error()}
	}
	return nil
}

// checkAppArmor returns an error if the kernel cannot enforce the AppArmor profiles that the pod requires, or
// a profile has no name. sys is the mount point of sysfs.
func checkAppArmor(pod *v1.Pod, sys string) error {
	var whole *v1.AppArmorProfile
	if sc := pod.Spec.SecurityContext; sc != nil {
		whole = sc.AppArmorProfile
	}
	asked := func(p *v1.AppArmorProfile) bool { return p != nil && p.Type != v1.AppArmorProfileTypeUnconfined }
	required, unnamed := asked(whole), ""
	look := func(sc *v1.SecurityContext) {
		p := whole
		if sc != nil && sc.AppArmorProfile != nil {
			p = sc.AppArmorProfile
		}
		if p == nil {
			return
		}
		required = required || asked(p)
		if p.Type == v1.AppArmorProfileTypeLocalhost && (p.LocalhostProfile == nil || strings.TrimSpace(*p.LocalhostProfile) == "") && unnamed == "" {
			unnamed = fmt.Sprintf("%q", p)
		}
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			look(list[i].SecurityContext)
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		look(pod.Spec.EphemeralContainers[i].SecurityContext)
	}
	for key, value := range pod.Annotations {
		if strings.HasPrefix(key, v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix) {
			required = required || value != v1.DeprecatedAppArmorBetaProfileNameUnconfined
		}
	}
	switch {
	case !required:
		return nil
	case !hasAppArmor(sys):
		return errors.New("AppArmor is not enabled on the host") //nolint:staticcheck // upstream's words
	case unnamed != "":
		return fmt.Errorf("invalid empty AppArmor profile name: %s", unnamed)
	}
	return nil
}

// hasAppArmor reports whether AppArmor is compiled into the kernel and enabled. sys is the mount point of
// sysfs.
func hasAppArmor(sys string) bool {
	if _, err := os.Stat(filepath.Join(sys, "kernel/security/apparmor")); err != nil {
		return false
	}
	on, err := os.ReadFile(filepath.Join(sys, "module/apparmor/parameters/enabled"))
	return err == nil && bytes.HasPrefix(on, []byte("Y"))
}
