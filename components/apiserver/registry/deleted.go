package registry

import "k8s.io/apimachinery/pkg/runtime/schema"

// ReturnsDeleted reports whether the response to a deletion of the resource is the deleted object
// instead of a Status, as in upstream.
func ReturnsDeleted(of schema.GroupResource) bool {
	switch of.Group {
	case "":
		switch of.Resource {
		case "persistentvolumeclaims", "persistentvolumes", "pods", "podtemplates", "resourcequotas", "serviceaccounts", "services":
			return true
		}
	case "storage.k8s.io":
		switch of.Resource {
		case "csidrivers", "csinodes", "storageclasses", "volumeattachments", "volumeattributesclasses":
			return true
		}
	case "resource.k8s.io":
		switch of.Resource {
		case "deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices":
			return true
		}
	}
	return false
}
