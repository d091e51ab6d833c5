// Package localpath names what the provisioner of local volumes and the nodes
// that have them agree upon. A volume is a folder of the same name below the
// node's own; the provisioner learns that place from the node.
package localpath

import (
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	volumehelpers "k8s.io/component-helpers/storage/volume"
)

const (
	// Provisioner is its name in StorageClasses and annotations.
	Provisioner = "hyperkube.io/local-path"
	// Annotation of a Node is the folder below which its volumes are.
	Annotation = "hyperkube.io/local-path"
	// Finalizer keeps a volume until its folder is gone.
	Finalizer = "hyperkube.io/local-path"
)

// Is tells whether a volume is one of the provisioner's, with the folder that it
// must have: nothing else is ever made or removed.
func Is(pv *corev1.PersistentVolume) bool {
	return pv.Annotations[volumehelpers.AnnDynamicallyProvisioned] == Provisioner &&
		pv.Spec.Local != nil && path.IsAbs(pv.Spec.Local.Path) && path.Clean(pv.Spec.Local.Path) == pv.Spec.Local.Path &&
		path.Base(pv.Spec.Local.Path) == pv.Name && !strings.HasPrefix(pv.Name, ".")
}

// Hostname returns the value of the hostname label that a volume is kept to, ""
// if it is not kept to one.
func Hostname(pv *corev1.PersistentVolume) string {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return ""
	}
	for _, t := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range t.MatchExpressions {
			if e.Key == corev1.LabelHostname && e.Operator == corev1.NodeSelectorOpIn && len(e.Values) == 1 {
				return e.Values[0]
			}
		}
	}
	return ""
}
