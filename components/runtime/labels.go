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

// labelFiles lets those with these labels read the sandbox's files.
func (r *Runtime) labelFiles(id string, labels *selinux.Labels) error {
	files := sandbox.PathsIn(r.sandboxDir(id))
	for _, file := range []string{files.Hosts, files.Hostname, files.ResolvConf} {
		if err := r.selinux.Label(file, labels); err != nil {
			return err
		}
	}
	return nil
}

// label labels what a container is to use of the host: the pod's files, and the
// mounts for which that is asked.
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
			continue // it is made when it is mounted, or refused
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
