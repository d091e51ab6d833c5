package pods

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// ClearLogs removes the logs of pods that this node does not have, and links to
// logs that are not there any more. It is called once all sources have told
// their pods.
func (m *Manager) ClearLogs() error {
	known := map[types.UID]bool{}
	m.mu.Lock()
	for uid := range m.workers {
		known[uid] = true
	}
	m.mu.Unlock()
	var errs []error
	dirs, err := os.ReadDir(m.host.PodLogs)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("looking for logs of pods that are gone: %w", err)
	}
	for _, d := range dirs {
		// NAMESPACE_NAME_UID; whatever is named otherwise is not the kubelet's.
		parts := strings.Split(d.Name(), "_")
		if !d.IsDir() || len(parts) != 3 || known[types.UID(parts[2])] {
			continue
		}
		m.mu.Lock()
		_, came := m.workers[types.UID(parts[2])]
		m.mu.Unlock()
		if came {
			continue
		}
		if err := os.RemoveAll(filepath.Join(m.host.PodLogs, d.Name())); err != nil {
			errs = append(errs, fmt.Errorf("removing the logs of a pod that is gone: %w", err))
		}
	}
	if m.host.ContainerLogs == "" {
		return errors.Join(errs...)
	}
	links, err := filepath.Glob(filepath.Join(m.host.ContainerLogs, "*.log"))
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
		// Only what led to logs of pods is the kubelet's.
		if to, err := os.Readlink(link); err != nil || !strings.HasPrefix(to, m.host.PodLogs+string(filepath.Separator)) {
			continue
		}
		if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("removing a link to a log that is gone: %w", err))
		}
	}
	return errors.Join(errs...)
}
