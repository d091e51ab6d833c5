package layout

import (
	"path/filepath"
	"strings"
)

// Alias maps the actual path of a directory of the host to the path under which pods are configured
// to mount it. The zero value does not change paths.
type Alias struct {
	// Advertised is the path advertised to pods, Actual the actual path.
	Advertised, Actual string
}

// KubeletAlias returns the alias of the kubelet's root directory. CSI drivers, device plugins and
// other pods mount parts of it from the host by its conventional path. If several nodes share a
// machine, that path belongs to another node or does not exist.
func (n Node) KubeletAlias() Alias {
	if n.AdvertisedKubelet == "" {
		return Alias{}
	}
	return Alias{Advertised: n.AdvertisedKubelet, Actual: n.Kubelet}
}

// HostPathAliases returns the aliases of directories that pods mount from the host by their conventional paths: the kubelet's root
// directory, and those that log collectors use.
func (n Node) HostPathAliases() []Alias {
	usual := Default()
	return []Alias{n.KubeletAlias(), {usual.PodLogs, n.PodLogs}, {usual.ContainerLogs, n.ContainerLogs}, {usual.LogDir(), n.LogDir()}, {usual.LogStore(), n.LogStore()}}
}

// ToActual returns the actual path for path, if path is the advertised directory or below it. It
// returns other paths unchanged.
func (a Alias) ToActual(path string) string { return swap(path, a.Advertised, a.Actual) }

// ToAdvertised returns the path advertised to pods for path, if path is the actual directory or
// below it. It returns other paths unchanged.
func (a Alias) ToAdvertised(path string) string { return swap(path, a.Actual, a.Advertised) }

// swap replaces the directory from at the beginning of path with to. It returns path unchanged if
// it is not in from.
func swap(path, from, to string) string {
	if from == to {
		return path
	}
	clean := filepath.Clean(path)
	if clean == from {
		return to
	}
	if rest, ok := strings.CutPrefix(clean, from+"/"); ok {
		return filepath.Join(to, rest)
	}
	return path
}
