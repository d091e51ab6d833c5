package former

import (
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	eventsv1beta1 "k8s.io/api/events/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"

	"hyperkube/internal/api"
	"hyperkube/internal/api/events"
)

// eventsVersions returns the readers of Events of the group events.k8s.io. They return core/v1
// Events, because events of both groups are stored as core/v1.
func eventsVersions() []version {
	present := func(old *eventsv1.Event, now *corev1.Event) error {
		*now = *events.ToCore(old)
		return nil
	}
	v1 := corev1.SchemeGroupVersion
	return []version{
		{"Event", v1, eventsv1.SchemeGroupVersion, func(decode func(into runtime.Object) error, into api.Object) error {
			old := &eventsv1.Event{}
			if err := decode(old); err != nil {
				return err
			}
			return present(old, into.(*corev1.Event))
		}},
		{"Event", v1, eventsv1beta1.SchemeGroupVersion, func(decode func(into runtime.Object) error, into api.Object) error {
			old, same := &eventsv1beta1.Event{}, &eventsv1.Event{}
			if err := decode(old); err != nil {
				return err
			}
			if err := copyByName(old, same); err != nil {
				return err
			}
			return present(same, into.(*corev1.Event))
		}},
	}
}
