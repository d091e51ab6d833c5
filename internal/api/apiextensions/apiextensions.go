// Package apiextensions defines the kinds of apiextensions.k8s.io/v1, one file per kind.
//
// https://kubernetes.io/docs/concepts/extend-kubernetes/api-extension/custom-resources/
package apiextensions

import "hyperkube/internal/api"

// Resources returns all resources of the group.
func Resources() []*api.Resource {
	return []*api.Resource{definition().Resource()}
}
