// Package localpath defines the conventions that the local volume provisioner and the nodes share.
// A volume is a directory with the same name below the node's volume directory, which the node
// publishes in an annotation.
package localpath

import (
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	volumehelpers "k8s.io/component-helpers/storage/volume"
)

const (
	// Provisioner is the name of the provisioner in StorageClasses and annotations.
	Provisioner = "hyperkube.io/local-path"
	// Annotation is the annotation of a Node with the parent directory of its volumes.
	Annotation = "hyperkube.io/local-path"
	// Finalizer protects a volume until its directory is removed.
	Finalizer = "hyperkube.io/local-path"
)

// IsManaged reports whether the local volume provisioner created the volume and the volume's
// directory has the expected name. Directories of other volumes are never created or removed.
func IsManaged(pv *corev1.PersistentVolume) bool {
	return pv.Annotations[volumehelpers.AnnDynamicallyProvisioned] == Provisioner &&
		pv.Spec.Local != nil && path.IsAbs(pv.Spec.Local.Path) && path.Clean(pv.Spec.Local.Path) == pv.Spec.Local.Path &&
		path.Base(pv.Spec.Local.Path) == pv.Name && !strings.HasPrefix(pv.Name, ".")
}

// Hostname returns the value of the hostname label that the node affinity of a volume requires, that is, the node of
// the volume. Only expressions with the operator In and one value count. It returns "" if there is none.
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
