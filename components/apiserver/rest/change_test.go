package rest

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestOnlyTimesChanged checks that updates that do not change managed fields, such as setting a
// pod's node, do not cause a comparison of the encoded objects.
func TestOnlyTimesChanged(t *testing.T) {
	at := func(seconds int64) *metav1.Time { return &metav1.Time{Time: time.Unix(seconds, 0)} }
	fields := func(manager, raw string, when *metav1.Time) []metav1.ManagedFieldsEntry {
		return []metav1.ManagedFieldsEntry{
			{Manager: "other", Operation: metav1.ManagedFieldsOperationApply, Time: at(1), FieldsV1: &metav1.FieldsV1{Raw: []byte("{}")}},
			{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, Time: when, FieldsV1: &metav1.FieldsV1{Raw: []byte(raw)}},
		}
	}
	before := fields("a", `{"f:x":{}}`, at(2))
	for name, c := range map[string]struct {
		now  []metav1.ManagedFieldsEntry
		want bool
	}{
		"nothing":         {fields("a", `{"f:x":{}}`, at(2)), false},
		"a time":          {fields("a", `{"f:x":{}}`, at(3)), true},
		"no time":         {fields("a", `{"f:x":{}}`, nil), true},
		"a manager":       {fields("b", `{"f:x":{}}`, at(2)), false},
		"fields, too":     {fields("a", `{"f:y":{}}`, at(3)), false},
		"one entry fewer": {before[:1], false},
		"no entries":      {nil, false},
	} {
		if got := onlyTimesChanged(c.now, before); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if onlyTimesChanged(nil, nil) {
		t.Error("without managed fields there are no times")
	}
}
