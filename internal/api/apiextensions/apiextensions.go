// Package apiextensions describes the kinds of apiextensions.k8s.io/v1, one
// file a kind.
//
// https://kubernetes.io/docs/concepts/extend-kubernetes/api-extension/custom-resources/
package apiextensions

import "hyperkube/internal/api"

// Resources are all kinds of the group.
func Resources() []*api.Resource {
	return []*api.Resource{definition().Resource()}
}
