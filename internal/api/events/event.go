package events

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

func event() api.Kind[*eventsv1.Event] {
	return api.Kind[*eventsv1.Event]{
		Names:       api.Names{Kind: "Event", Plural: "events", ShortNames: []string{"ev"}},
		Group:       eventsv1.GroupName,
		Version:     "v1",
		Scope:       api.Namespaced,
		StoragePath: "events",
		StoredAs: &api.StoredAs{
			GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Event"),
			ToStored: func(obj api.Object) (api.Object, error) {
				return ToCore(obj.(*eventsv1.Event)), nil
			},
			FromStored: func(obj api.Object) (api.Object, error) {
				return FromCore(obj.(*corev1.Event)), nil
			},
		},
		New:     func() *eventsv1.Event { return &eventsv1.Event{} },
		NewList: func() runtime.Object { return &eventsv1.EventList{} },

		AllowCreateOnUpdate: true,
		PlainMeta:           true, // see validateCreate
		Validate: func(_ context.Context, e *eventsv1.Event) field.ErrorList {
			return validateCreate(e)
		},
		Update: api.KindUpdate[*eventsv1.Event]{
			Validate: func(_ context.Context, e, old *eventsv1.Event) field.ErrorList {
				return validateUpdate(e, old)
			},
		},
		Fields: func(e *eventsv1.Event) fields.Set {
			source := e.DeprecatedSource.Component
			if source == "" {
				source = e.ReportingController
			}
			return fields.Set{
				"regarding.kind":            e.Regarding.Kind,
				"regarding.namespace":       e.Regarding.Namespace,
				"regarding.name":            e.Regarding.Name,
				"regarding.uid":             string(e.Regarding.UID),
				"regarding.apiVersion":      e.Regarding.APIVersion,
				"regarding.resourceVersion": e.Regarding.ResourceVersion,
				"regarding.fieldPath":       e.Regarding.FieldPath,
				"reason":                    e.Reason,
				"reportingController":       e.ReportingController,
				"source":                    source,
				"type":                      e.Type,
			}
		},
		FieldNames: []string{
			"reason", "regarding.kind", "regarding.namespace", "regarding.name", "regarding.uid",
			"regarding.apiVersion", "regarding.resourceVersion", "regarding.fieldPath", "reportingController", "type",
		},
		Columns: Columns(),
		Row:     func(e *eventsv1.Event) []any { return Row(ToCore(e)) },
	}
}

// Columns returns the table columns of events.k8s.io/v1 Events, which equal those of core/v1.
func Columns() []metav1.TableColumnDefinition {
	doc := corev1.Event{}.SwaggerDoc()
	name := api.NameColumn
	name.Priority = 1
	return []metav1.TableColumnDefinition{
		api.Column("Last Seen", "string", doc["lastTimestamp"]),
		api.Column("Type", "string", doc["type"]),
		api.Column("Reason", "string", doc["reason"]),
		api.Column("Object", "string", doc["involvedObject"]),
		api.WideColumn("Subobject", "string", corev1.ObjectReference{}.SwaggerDoc()["fieldPath"]),
		api.WideColumn("Source", "string", doc["source"]),
		api.Column("Message", "string", doc["message"]),
		api.WideColumn("First Seen", "string", doc["firstTimestamp"]),
		api.WideColumn("Count", "string", doc["count"]),
		name,
	}
}

// Row returns the cells of an event, converted to core/v1, for Columns.
func Row(e *corev1.Event) []any {
	first := api.Age(e.FirstTimestamp)
	if e.FirstTimestamp.IsZero() {
		first = api.Age(metav1.Time(e.EventTime))
	}
	last := api.Age(e.LastTimestamp)
	if e.LastTimestamp.IsZero() {
		last = first
	}
	count := e.Count
	switch {
	case e.Series != nil:
		last = api.Age(metav1.Time(e.Series.LastObservedTime))
		count = e.Series.Count
	case count == 0:
		// events.k8s.io does not count events that occurred once.
		count = 1
	}
	target := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name != "" {
		target = fmt.Sprintf("%s/%s", target, e.InvolvedObject.Name)
	}
	return []any{
		last, e.Type, e.Reason, target, e.InvolvedObject.FieldPath, source(e),
		strings.TrimSpace(e.Message), first, int64(count), e.Name,
	}
}

// source returns the table cell of an event's source: the component and, if known, the host or instance.
func source(e *corev1.Event) string {
	component, host := e.Source.Component, e.Source.Host
	if component == "" {
		component = e.ReportingController
	}
	if host == "" {
		host = e.ReportingInstance
	}
	if host == "" {
		return component
	}
	return component + ", " + host
}
