package pods

import (
	"os"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/kubelet/pod/volume"
)

func TestMountsToRelabel(t *testing.T) {
	for _, selinux := range []bool{true, false} {
		h := newHost(Config{Volumes: &volume.Set{Root: t.TempDir(), SELinux: selinux}})
		c := &v1.Container{Name: "c", TerminationMessagePath: "/dev/termination-log", VolumeMounts: []v1.VolumeMount{
			{Name: "mine", MountPath: "/mine"}, {Name: "host", MountPath: "/host"},
		}}
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}, Spec: v1.PodSpec{Containers: []v1.Container{*c}}}
		if err := os.MkdirAll(h.Volumes.PodDir(pod.UID), 0o750); err != nil {
			t.Fatal(err)
		}
		mounts, err := h.configs.mounts(pod, c, containerInput{
			volumes: map[string]volume.Result{"mine": {Path: t.TempDir(), Relabel: selinux}, "host": {Path: t.TempDir()}},
			ips:     []string{"10.0.0.1"},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]bool{"/mine": selinux, "/host": false, "/etc/hosts": selinux, "/dev/termination-log": selinux}
		for _, m := range mounts {
			if m.SelinuxRelabel != want[m.ContainerPath] {
				t.Errorf("with SELinux %t: %s is relabelled: %t", selinux, m.ContainerPath, m.SelinuxRelabel)
			}
			delete(want, m.ContainerPath)
		}
		if len(want) != 0 {
			t.Errorf("not mounted: %v", want)
		}
	}
}
