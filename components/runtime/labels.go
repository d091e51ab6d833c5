//go:build cgo

package runtime

import (
	"errors"
	"os"
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/selinux"
)

// label sets the SELinux label of host files that a container uses: of the sandbox's files for /etc, if the container's
// label differs from that of its pod, and recursively of the sources of mounts that request relabeling. labels are
// those of the container. Without SELinux it does nothing.
func (b *specBuilder) label(pod sandboxRecord, labels *selinux.Labels, mounts []*runtimeapi.Mount) error {
	if b.selinux == nil {
		return nil
	}
	if labels != nil && labels.ForMount() != pod.Labels.ForMount() {
		if err := b.labelFiles(pod.ID, labels); err != nil {
			return err
		}
	}
	for _, m := range mounts {
		if !m.GetSelinuxRelabel() {
			continue
		}
		source, err := filepath.EvalSymlinks(m.GetHostPath())
		if errors.Is(err, os.ErrNotExist) {
			continue // created or rejected by the mount
		}
		if err == nil {
			err = b.selinux.Relabel(source, labels)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
