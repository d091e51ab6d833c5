// Package rbac defines the kinds of rbac.authorization.k8s.io/v1, one file per kind. The authorizer
// evaluates the roles. The API server checks writes for privilege escalation.
package rbac

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/validation/path"

	"hyperkube/internal/api"
)

const (
	group   = rbacv1.GroupName
	version = "v1"
)

// Resources returns the definitions of the resources of the API group rbac.authorization.k8s.io, in all served
// versions. Package catalog collects those of all groups for the API server.
func Resources() []*api.Resource {
	return []*api.Resource{
		clusterRoleBinding().Resource(),
		clusterRole().Resource(),
		roleBinding().Resource(),
		role().Resource(),
	}
}

// validName returns the errors of an RBAC object's name. It accepts all valid path segments, such
// as "system:kube-scheduler".
func validName(name string, _ bool) []string {
	return path.IsValidPathSegmentName(name)
}
