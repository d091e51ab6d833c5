package events

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/validate"
)

// Size limits of event texts in bytes.
const (
	maxText = 128
	maxNote = 1024
)

// As in upstream, error paths are those of the stored core/v1 Event.

// validateCreate validates a new event, including its metadata. It is stricter than core/v1:
// eventTime is required, and the deprecated fields must be unset. As in upstream, errors about the
// metadata follow those of validateBoth.
func validateCreate(e *eventsv1.Event) field.ErrorList {
	errs := validateBoth(e)
	errs = append(errs, apivalidation.ValidateObjectMeta(&e.ObjectMeta, true, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))...)
	errs = append(errs, validate.StandardFinalizers(e.Finalizers)...)
	errs = append(errs, validateSeries(e)...)
	if e.EventTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), "", fmt.Sprintf("has invalid value: %v", e.Type)))
	}
	for _, deprecated := range []struct {
		name string
		set  bool
	}{
		{"firstTimestamp", !e.DeprecatedFirstTimestamp.IsZero()},
		{"lastTimestamp", !e.DeprecatedLastTimestamp.IsZero()},
		{"count", e.DeprecatedCount != 0},
		{"source", e.DeprecatedSource != corev1.EventSource{}},
	} {
		if deprecated.set {
			errs = append(errs, field.Invalid(field.NewPath(deprecated.name), "", "needs to be unset"))
		}
	}
	return errs
}

// validateUpdate validates an updated event. Unlike core/v1, it allows only changes of the series
// and the metadata.
func validateUpdate(e, old *eventsv1.Event) field.ErrorList {
	errs := validateBoth(e)
	errs = append(errs, validate.StandardFinalizers(e.Finalizers)...)
	if !apiequality.Semantic.DeepEqual(e.Series, old.Series) {
		errs = append(errs, validateSeries(e)...)
	}
	same := func(name string, is, was any) {
		errs = append(errs, apivalidation.ValidateImmutableField(is, was, field.NewPath(name))...)
	}
	same("involvedObject", e.Regarding, old.Regarding)
	same("reason", e.Reason, old.Reason)
	same("message", e.Note, old.Note)
	same("source", e.DeprecatedSource, old.DeprecatedSource)
	same("firstTimestamp", e.DeprecatedFirstTimestamp, old.DeprecatedFirstTimestamp)
	same("lastTimestamp", e.DeprecatedLastTimestamp, old.DeprecatedLastTimestamp)
	same("count", e.DeprecatedCount, old.DeprecatedCount)
	same("reason", e.Reason, old.Reason)
	same("type", e.Type, old.Type)
	// Encodings differ in the precision below a microsecond.
	if !e.EventTime.Truncate(time.Microsecond).Equal(old.EventTime.Truncate(time.Microsecond)) {
		same("eventTime", e.EventTime, old.EventTime)
	}
	same("action", e.Action, old.Action)
	same("related", e.Related, old.Related)
	same("reportingController", e.ReportingController, old.ReportingController)
	same("reportingInstance", e.ReportingInstance, old.ReportingInstance)
	return errs
}

func validateSeries(e *eventsv1.Event) field.ErrorList {
	if e.Series == nil {
		return nil
	}
	var errs field.ErrorList
	if e.Series.Count < 2 {
		errs = append(errs, field.Invalid(field.NewPath("series.count"), "", "should be at least 2"))
	}
	if e.Series.LastObservedTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("series.lastObservedTime"), ""))
	}
	return errs
}

// validateBoth validates the fields of an event with the rules that apply to new and updated
// events.
func validateBoth(e *eventsv1.Event) field.ErrorList {
	var errs field.ErrorList
	about := e.Regarding.Namespace
	mismatch := field.Invalid(field.NewPath("involvedObject", "namespace"), about, "does not match event.namespace")
	if e.EventTime.IsZero() {
		// Events for cluster-scoped objects are in the namespace "default".
		if about == "" && e.Namespace != "" && e.Namespace != metav1.NamespaceDefault || about != "" && about != e.Namespace {
			errs = append(errs, mismatch)
		}
	} else {
		if about == "" && e.Namespace != metav1.NamespaceDefault && e.Namespace != metav1.NamespaceSystem {
			errs = append(errs, mismatch)
		}
		controller := field.NewPath("reportingController")
		if e.ReportingController == "" {
			errs = append(errs, field.Required(controller, ""))
		}
		for _, msg := range validation.IsQualifiedName(e.ReportingController) {
			errs = append(errs, field.Invalid(controller, e.ReportingController, msg))
		}
		errs = append(errs, validateText("reportingInstance", e.ReportingInstance)...)
		errs = append(errs, validateText("action", e.Action)...)
		errs = append(errs, validateText("reason", e.Reason)...)
		if len(e.Note) > maxNote {
			errs = append(errs, field.Invalid(field.NewPath("message"), "", fmt.Sprintf("can have at most %v characters", maxNote)))
		}
	}
	return errs
}

func validateText(name, text string) field.ErrorList {
	if text == "" {
		return field.ErrorList{field.Required(field.NewPath(name), "")}
	}
	if len(text) > maxText {
		return field.ErrorList{field.Invalid(field.NewPath(name), "", fmt.Sprintf("can have at most %v characters", maxText))}
	}
	return nil
}
