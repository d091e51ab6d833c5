//go:build cgo

package container

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/images"
	"hyperkube/components/runtime/selinux"
)

func TestLabelsOfASpecification(t *testing.T) {
	labels := selinux.Labels{Process: "system_u:system_r:container_t:s0:c1,c2", Mount: "system_u:object_r:container_file_t:s0:c1,c2"}
	for name, test := range map[string]struct {
		unconfined bool
		process    string
	}{"confined": {false, labels.Process}, "unconfined": {true, ""}} {
		l := labels
		l.Unconfined = test.unconfined
		spec, err := Build(Input{
			Config: &runtimeapi.ContainerConfig{Command: []string{"true"}, Linux: &runtimeapi.LinuxContainerConfig{}},
			Image:  images.Config{}, Rootfs: t.TempDir(), Labels: &l,
		})
		if err != nil {
			t.Fatal(err)
		}
		if spec.Process.SelinuxLabel != test.process || spec.Linux.MountLabel != l.Mount {
			t.Errorf("%s: labels %q and %q", name, spec.Process.SelinuxLabel, spec.Linux.MountLabel)
		}
	}
}
