//go:build cgo

package runtime

import (
	"errors"
	"os"
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/sandbox"
	"hyperkube/components/runtime/selinux"
)

// labelFiles sets the SELinux label of the sandbox's files so that containers with these labels can
// read them.
func (r *Runtime) labelFiles(id string, labels *selinux.Labels) error {
	files := sandbox.PathsIn(r.sandboxDir(id))
	for _, file := range []string{files.Hosts, files.Hostname, files.ResolvConf} {
		if err := r.selinux.Label(file, labels); err != nil {
			return err
		}
	}
	return nil
}

// label sets the SELinux labels of host files that a container uses: the pod's files and the mounts
// that request relabeling.
func (r *Runtime) label(pod sandboxRecord, labels *selinux.Labels, mounts []*runtimeapi.Mount) error {
	if r.selinux == nil {
		return nil
	}
	if labels != nil && labels.ForMount() != pod.Labels.ForMount() {
		if err := r.labelFiles(pod.ID, labels); err != nil {
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
			err = r.selinux.Relabel(source, labels)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
