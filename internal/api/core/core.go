// Package core describes the kinds of the core/v1 API group, one file a kind;
// Pod has a folder of its own. See package api for what a description holds.
package core

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/internal/api"
	"hyperkube/internal/api/core/pod"
)

// Resources are all kinds of core/v1 that are stored, and ComponentStatus,
// which only looks like one.
func Resources() []*api.Resource {
	return []*api.Resource{
		configMap().Resource(),
		namespace().Resource(),
		secret().Resource(),
		serviceAccount().Resource(),
		node().Resource(),
		pod.Kind().Resource(),
		service().Resource(),
		endpoints().Resource(),
		event().Resource(),
		podTemplate().Resource(),
		replicationController().Resource(),
		persistentVolume().Resource(),
		persistentVolumeClaim().Resource(),
		resourceQuota().Resource(),
		limitRange().Resource(),
		componentStatus().Resource(),
	}
}

// column is a table column without a format.
func column(name, typ, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: typ, Description: description}
}

// wideColumn is a column that kubectl shows with -o wide alone.
func wideColumn(name, typ, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: typ, Description: description, Priority: 1}
}
