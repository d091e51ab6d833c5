package layout

import (
	"path/filepath"
	"strings"
)

// Alias is a directory that pods know by another path than that where it is. The
// zero value changes no path.
type Alias struct {
	// Known is the path by which pods know it, Own the one where it is.
	Known, Own string
}

// KubeletAlias is the alias of the kubelet's root directory. CSI drivers, device
// plugins and others mount parts of it from the host by its usual path, which is
// another node's, or nobody's, where several nodes share a machine.
func (n Node) KubeletAlias() Alias {
	if n.KnownKubelet == "" {
		return Alias{}
	}
	return Alias{Known: n.KnownKubelet, Own: n.Kubelet}
}

// Locate is where a path is that pods know.
func (a Alias) Locate(path string) string { return swap(path, a.Known, a.Own) }

// Tell is how pods know the path of something.
func (a Alias) Tell(path string) string { return swap(path, a.Own, a.Known) }

// swap puts one directory in the place of another at a path's beginning.
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
