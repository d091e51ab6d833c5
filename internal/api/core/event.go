package core

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

// event describes events as core/v1 has them; events.k8s.io/v1 serves the same
// objects in another form.
func event() api.Kind[*corev1.Event] {
	check := func(ev *corev1.Event) field.ErrorList { return validateEvent(ev, "reportingComponent") }
	doc, object := corev1.Event{}.SwaggerDoc(), corev1.ObjectReference{}.SwaggerDoc()
	return api.Kind[*corev1.Event]{
		Names: api.Names{
			Kind:       "Event",
			Plural:     "events",
			ShortNames: []string{"ev"},
		},
		Version: "v1",
		Scope:   api.Namespaced,
		New:     func() *corev1.Event { return &corev1.Event{} },
		NewList: func() runtime.Object { return &corev1.EventList{} },
		// Names of events are made by many and anything that fits a path.
		ValidateName:        path.ValidatePathSegmentName,
		Validate:            func(_ context.Context, ev *corev1.Event) field.ErrorList { return check(ev) },
		AllowCreateOnUpdate: true,
		// Upstream leaves the metadata of events of this form to what is checked of all objects.
		PlainMeta: true,
		Update: api.KindUpdate[*corev1.Event]{
			Validate: func(_ context.Context, ev, _ *corev1.Event) field.ErrorList { return check(ev) },
		},
		Fields: eventFields,
		FieldNames: []string{
			"involvedObject.apiVersion", "involvedObject.fieldPath", "involvedObject.kind", "involvedObject.name",
			"involvedObject.namespace", "involvedObject.resourceVersion", "involvedObject.uid",
			"reason", "reportingComponent", "source", "type",
		},
		Columns: []metav1.TableColumnDefinition{
			api.Column("Last Seen", "string", doc["lastTimestamp"]),
			api.Column("Type", "string", doc["type"]),
			api.Column("Reason", "string", doc["reason"]),
			api.Column("Object", "string", doc["involvedObject"]),
			api.WideColumn("Subobject", "string", object["fieldPath"]),
			api.WideColumn("Source", "string", doc["source"]),
			api.Column("Message", "string", doc["message"]),
			api.WideColumn("First Seen", "string", doc["firstTimestamp"]),
			api.WideColumn("Count", "string", doc["count"]),
			{Name: "Name", Type: "string", Format: "name", Priority: 1, Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]},
		},
		Row: eventRow,
	}
}

// validateEvent checks an event. An event with an eventTime is of the newer
// kind that says who reports it and what was done; reporter is the name of the
// field that says so in the version of the API that the client uses.
func validateEvent(ev *corev1.Event, reporter string) field.ErrorList {
	e := &validate.Errors{}
	object, mismatch := field.NewPath("involvedObject", "namespace"), "does not match event.namespace"
	if ev.EventTime.IsZero() {
		clusterScoped := ev.InvolvedObject.Namespace == "" && (ev.Namespace == "" || ev.Namespace == metav1.NamespaceDefault)
		if !clusterScoped && ev.Namespace != ev.InvolvedObject.Namespace {
			e.Invalid(object, ev.InvolvedObject.Namespace, mismatch)
		}
	} else {
		if ev.InvolvedObject.Namespace == "" && ev.Namespace != metav1.NamespaceDefault && ev.Namespace != metav1.NamespaceSystem {
			e.Invalid(object, ev.InvolvedObject.Namespace, mismatch)
		}
		if ev.ReportingController == "" {
			e.Required(field.NewPath(reporter), "")
		}
		e.QualifiedName(field.NewPath(reporter), ev.ReportingController)
		within := func(name, value string, required bool, most int) {
			if required && value == "" {
				e.Required(field.NewPath(name), "")
			}
			if len(value) > most {
				e.Invalid(field.NewPath(name), "", fmt.Sprintf("can have at most %v characters", most))
			}
		}
		within("reportingInstance", ev.ReportingInstance, true, 128)
		within("action", ev.Action, true, 128)
		within("reason", ev.Reason, true, 128)
		within("message", ev.Message, false, 1024)
	}
	e.InvalidAll(field.NewPath("namespace"), ev.Namespace, validation.IsDNS1123Subdomain(ev.Namespace))
	return e.List
}

// eventFields are the selectable fields of an event, by the names that
// core/v1 gives them.
func eventFields(ev *corev1.Event) fields.Set {
	source := ev.Source.Component
	if source == "" {
		source = ev.ReportingController
	}
	return fields.Set{
		"involvedObject.apiVersion":      ev.InvolvedObject.APIVersion,
		"involvedObject.fieldPath":       ev.InvolvedObject.FieldPath,
		"involvedObject.kind":            ev.InvolvedObject.Kind,
		"involvedObject.name":            ev.InvolvedObject.Name,
		"involvedObject.namespace":       ev.InvolvedObject.Namespace,
		"involvedObject.resourceVersion": ev.InvolvedObject.ResourceVersion,
		"involvedObject.uid":             string(ev.InvolvedObject.UID),
		"reason":                         ev.Reason,
		"reportingComponent":             ev.ReportingController,
		"source":                         source,
		"type":                           ev.Type,
	}
}

// eventRow is an event in a table, in the columns of core/v1.
func eventRow(ev *corev1.Event) []any {
	micro := func(t metav1.MicroTime) string { return api.Age(metav1.Time(t)) }
	first := api.Age(ev.FirstTimestamp)
	if ev.FirstTimestamp.IsZero() {
		first = micro(ev.EventTime)
	}
	last := api.Age(ev.LastTimestamp)
	if ev.LastTimestamp.IsZero() {
		last = first
	}
	count := ev.Count
	switch {
	case ev.Series != nil:
		last, count = micro(ev.Series.LastObservedTime), ev.Series.Count
	case count == 0:
		count = 1
	}
	object := strings.ToLower(ev.InvolvedObject.Kind)
	if ev.InvolvedObject.Name != "" {
		object += "/" + ev.InvolvedObject.Name
	}
	source, instance := ev.Source.Component, ev.Source.Host
	if source == "" {
		source = ev.ReportingController
	}
	if instance == "" {
		instance = ev.ReportingInstance
	}
	if instance != "" {
		source += ", " + instance
	}
	return []any{
		last, ev.Type, ev.Reason, object, ev.InvolvedObject.FieldPath, source,
		strings.TrimSpace(ev.Message), first, int64(count), ev.Name,
	}
}
