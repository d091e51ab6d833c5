package pod

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

// TestDropDisabled checks that fields of disabled features are cleared, unless the stored object
// uses them.
func TestDropDisabled(t *testing.T) {
	for name, test := range map[string]struct{ is, dropped string }{
		"directory's mode":     {"{volumes: [{name: v, emptyDir: {mode: 448}}]}", "{volumes: [{name: v, emptyDir: {}}]}"},
		"mount's options":      {"{containers: [{name: c, volumeMounts: [{name: v, bindMountOptions: [noexec]}]}]}", "{containers: [{name: c, volumeMounts: [{name: v}]}]}"},
		"stop signal":          {"{containers: [{name: c, lifecycle: {stopSignal: SIGTERM}}]}", "{containers: [{name: c}]}"},
		"signal and hook":      {"{initContainers: [{name: c, lifecycle: {stopSignal: SIGTERM, preStop: {sleep: {seconds: 1}}}}]}", "{initContainers: [{name: c, lifecycle: {preStop: {sleep: {seconds: 1}}}}]}"},
		"scheduling group":     {"{schedulingGroup: {podGroupName: g}}", "{}"},
		"file's user":          {"{volumes: [{name: v, secret: {defaultUser: 1, items: [{key: a, path: a, user: 1}]}}]}", "{volumes: [{name: v, secret: {items: [{key: a, path: a}]}}]}"},
		"projected user":       {"{volumes: [{name: v, projected: {defaultUser: 1, sources: [{serviceAccountToken: {path: a, user: 1}}]}}]}", "{volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: a}}]}}]}"},
		"probe's protocol":     {"{containers: [{name: c, livenessProbe: {httpGet: {protocol: HTTP2}}}]}", "{containers: [{name: c, livenessProbe: {httpGet: {}}}]}"},
		"no disabled features": {"{hostname: a}", "{hostname: a}"},
	} {
		is, want := parse(t, "{spec: "+test.is+"}"), parse(t, "{spec: "+test.dropped+"}")
		kept := is.Spec.DeepCopy()
		if DropDisabled(kept, &is.Spec); !apiequality.Semantic.DeepEqual(kept, &is.Spec) {
			t.Errorf("%s: not kept: %v", name, kept)
		}
		got := is.Spec.DeepCopy()
		if DropDisabled(got, &corev1.PodSpec{}); !apiequality.Semantic.DeepEqual(got, &want.Spec) {
			t.Errorf("%s: %v", name, got)
		}
	}
}
