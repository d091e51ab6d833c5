package core

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"hyperkube/internal/api"
)

// componentStatus returns the kind ComponentStatus, which is deprecated since v1.19 and served for
// old clients. It is not stored: the API server checks the components on each request.
func componentStatus() api.Kind[*corev1.ComponentStatus] {
	return api.Kind[*corev1.ComponentStatus]{
		Names: api.Names{
			Kind:       "ComponentStatus",
			Plural:     "componentstatuses",
			ShortNames: []string{"cs"},
		},
		Version: "v1",
		Scope:   api.Cluster,
		Verbs:   []string{"get", "list"},
		New:     func() *corev1.ComponentStatus { return &corev1.ComponentStatus{} },
		NewList: func() runtime.Object { return &corev1.ComponentStatusList{} },
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Status", "string", "Status of the component conditions"),
			api.Column("Message", "string", "Message of the component conditions"),
			api.Column("Error", "string", "Error of the component conditions"),
		},
		Row: func(cs *corev1.ComponentStatus) []any {
			status, message, problem := "Unknown", "", ""
			for _, c := range cs.Conditions {
				if c.Type == corev1.ComponentHealthy {
					status = "Unhealthy"
					if c.Status == corev1.ConditionTrue {
						status = "Healthy"
					}
					message, problem = c.Message, c.Error
					break
				}
			}
			return []any{cs.Name, status, message, problem}
		},
	}
}
