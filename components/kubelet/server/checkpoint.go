package server

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
)

// checkpoint serves /checkpoint: the runtime checkpoints a container into an archive on the node, if it
// supports that. The response has the path of the archive.
//
// https://kubernetes.io/docs/reference/node/kubelet-checkpoint-api/
func (s *Server) checkpoint(w http.ResponseWriter, r *http.Request) {
	namespace, name, container := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")
	all := s.cfg.Backend.Pods()
	at := slices.IndexFunc(all, func(p *v1.Pod) bool { return p.Namespace == namespace && p.Name == name })
	if at < 0 {
		http.Error(w, "pod does not exist", http.StatusNotFound)
		return
	}
	if !hasContainer(all[at], container) {
		http.Error(w, fmt.Sprintf("container %v does not exist", container), http.StatusNotFound)
		return
	}
	var timeout int64
	if given := r.URL.Query()["timeout"]; len(given) > 0 {
		var err error
		if timeout, err = strconv.ParseInt(given[len(given)-1], 10, 64); err != nil {
			http.Error(w, "cannot parse value of timeout parameter", http.StatusNotFound)
			return
		}
	}
	_, c, err := s.cfg.Backend.Container(namespace, name, all[at].UID, container, false)
	if err != nil {
		err = fmt.Errorf("container %v not found", container)
	}
	var path string
	if err == nil {
		file := fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", name, namespace, container, time.Now().Format(time.RFC3339))
		path, err = s.cfg.Backend.Checkpoint(r.Context(), c.ID, file, timeout)
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("checkpointing of %v/%v/%v failed (%v)", namespace, name, container, err), http.StatusInternalServerError)
		return
	}
	writeJSON(w, map[string][]string{"items": {path}})
}

// hasContainer reports whether the pod spec has a container of that name and any kind.
func hasContainer(pod *v1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(c v1.Container) bool { return c.Name == name }) ||
		slices.ContainsFunc(pod.Spec.InitContainers, func(c v1.Container) bool { return c.Name == name }) ||
		slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c v1.EphemeralContainer) bool { return c.Name == name })
}
