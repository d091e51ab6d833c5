package wire

import (
	"bytes"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func TestLook(t *testing.T) {
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"a": "1", "empty": ""}},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	raw, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	// Repeated messages are merged.
	more := corev1.Pod{Spec: corev1.PodSpec{NodeName: "n2"}, Status: corev1.PodStatus{Phase: corev1.PodFailed}}
	second, err := more.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		raw  []byte
		path []int
		want string
	}{
		{raw, []int{2, 10}, "n1"},
		{raw, []int{3, 1}, "Running"},
		{raw, []int{1, 1}, "p"},
		{raw, []int{9, 9}, ""},
		{nil, []int{2, 10}, ""},
		{append(bytes.Clone(raw), second...), []int{2, 10}, "n2"},
	} {
		if got, err := LookupField(test.raw, test.path); err != nil || string(got) != test.want {
			t.Errorf("%v: %q %v, want %q", test.path, got, err, test.want)
		}
	}
	if _, err := LookupField(raw[:len(raw)-1], []int{3, 1}); err == nil {
		t.Error("no error for an aborted response")
	}
	for selector, want := range map[string]bool{
		"": true, "a": true, "a=1": true, "a=2": false, "a!=1": false, "!b": true, "b": false, "empty": true, "empty=": true, "a in (1,2)": true, "b notin (1)": true,
	} {
		s, err := labels.Parse(selector)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Matches(LabelsOf(raw)); got != want || got != s.Matches(labels.Set(pod.Labels)) {
			t.Errorf("%q selects: %v", selector, got)
		}
	}
}

// FuzzLook compares the results with those of decoding.
func FuzzLook(f *testing.F) {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "1"}}, Spec: corev1.PodSpec{NodeName: "n1"}}
	raw, err := pod.Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Fuzz(func(t *testing.T, data []byte) {
		value, err := LookupField(data, []int{2, 10})
		found := LabelsOf(data).Get("a")
		var pod corev1.Pod
		if pod.Unmarshal(data) != nil {
			return
		}
		if err == nil && string(value) != pod.Spec.NodeName {
			t.Errorf("%q, want %q", value, pod.Spec.NodeName)
		}
		if err == nil && found != pod.Labels["a"] {
			t.Errorf("label %q, want %q", found, pod.Labels["a"])
		}
	})
}
