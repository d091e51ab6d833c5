// Package apiextensions defines the kinds of apiextensions.k8s.io/v1, one file per kind.
//
// https://kubernetes.io/docs/concepts/extend-kubernetes/api-extension/custom-resources/
package apiextensions

import "hyperkube/internal/api"

// Resources returns the definitions of the resources of the API group apiextensions.k8s.io, in all served versions.
// Package catalog collects those of all groups for the API server.
func Resources() []*api.Resource {
	return []*api.Resource{definition().Resource()}
}
