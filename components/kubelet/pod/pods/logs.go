package pods

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// RemoveOrphanedLogs removes logs of pods that do not exist on this node, and dangling links to logs. It is
// called when all sources have delivered their pods.
func (m *Manager) RemoveOrphanedLogs() error {
	known := map[types.UID]bool{}
	m.mu.Lock()
	for uid := range m.workers {
		known[uid] = true
	}
	m.mu.Unlock()
	var errs []error
	dirs, err := os.ReadDir(m.host.PodLogs)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("listing logs of deleted pods: %w", err)
	}
	for _, d := range dirs {
		// The kubelet's directories are named NAMESPACE_NAME_UID; others are ignored.
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
			errs = append(errs, fmt.Errorf("removing the logs of a deleted pod: %w", err))
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
		// Only links to pod logs belong to the kubelet.
		if to, err := os.Readlink(link); err != nil || !strings.HasPrefix(to, m.host.PodLogs+string(filepath.Separator)) {
			continue
		}
		if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("removing a dangling log link: %w", err))
		}
	}
	return errors.Join(errs...)
}
