package pods

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Logs has the paths of two directories: that of the log files of pods, and that of the links by which log
// collectors find them.
type Logs struct {
	// Pods has a directory for each pod.
	Pods string
	// Containers has links to the logs by which log collectors find them. If it is "", there are no
	// links.
	Containers string
}

// Dir returns the log directory of a pod.
func (l Logs) Dir(pod *v1.Pod) string {
	return filepath.Join(l.Pods, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
}

// RemoveOrphanedLogs removes logs of pods that do not exist on this node, and dangling links to logs. It must
// not be called before all sources have delivered their pods, because the logs of missing pods would be lost.
func (g *GarbageCollector) RemoveOrphanedLogs() error {
	known := map[types.UID]bool{}
	for _, w := range g.registry.all() {
		known[w.uid] = true
	}
	var errs []error
	dirs, err := os.ReadDir(g.logs.Pods)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("listing logs of deleted pods: %w", err)
	}
	for _, d := range dirs {
		// The kubelet's directories are named NAMESPACE_NAME_UID; others are ignored.
		parts := strings.Split(d.Name(), "_")
		if !d.IsDir() || len(parts) != 3 || known[types.UID(parts[2])] || g.registry.worker(types.UID(parts[2])) != nil {
			continue
		}
		if err := os.RemoveAll(filepath.Join(g.logs.Pods, d.Name())); err != nil {
			errs = append(errs, fmt.Errorf("removing the logs of a deleted pod: %w", err))
		}
	}
	if g.logs.Containers == "" {
		return errors.Join(errs...)
	}
	links, err := filepath.Glob(filepath.Join(g.logs.Containers, "*.log"))
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, link := range links {
		info, err := os.Lstat(link)
		if err != nil || info.Mode()&os.ModeSymlink == 0 {
			continue
		}
		if _, err := os.Stat(link); !errors.Is(err, os.ErrNotExist) {
			continue
		}
		// Only links to pod logs belong to the kubelet.
		if to, err := os.Readlink(link); err != nil || !strings.HasPrefix(to, g.logs.Pods+string(filepath.Separator)) {
			continue
		}
		if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("removing a dangling log link: %w", err))
		}
	}
	return errors.Join(errs...)
}
