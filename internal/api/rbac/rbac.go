// Package rbac describes the kinds of rbac.authorization.k8s.io/v1, one file a
// kind. What a role grants is decided by the authorizer; escalation is checked
// by the API server on writes.
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

// Resources are all kinds of the group.
func Resources() []*api.Resource {
	return []*api.Resource{
		clusterRoleBinding().Resource(),
		clusterRole().Resource(),
		roleBinding().Resource(),
		role().Resource(),
	}
}

// validName allows what can be a segment of a path, such as
// "system:kube-scheduler".
func validName(name string, _ bool) []string {
	return path.IsValidPathSegmentName(name)
}
