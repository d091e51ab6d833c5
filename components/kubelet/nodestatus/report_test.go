package nodestatus

import (
	"maps"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestRelabel(t *testing.T) {
	own := map[string]string{v1.LabelOSStable: osName, v1.LabelArchStable: archName}
	for name, c := range map[string]struct {
		labels map[string]string
		patch  string
	}{
		"as it should be": {maps.Clone(own), `{}`},
		"without labels":  {nil, `{"metadata":{"labels":{"kubernetes.io/arch":"` + archName + `","kubernetes.io/os":"` + osName + `"}}}`},
		"another system": {
			map[string]string{v1.LabelOSStable: "plan9", v1.LabelArchStable: archName, "kept": "yes"},
			`{"metadata":{"labels":{"kubernetes.io/os":"` + osName + `"}}}`,
		},
	} {
		have := &v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: c.labels}}
		want := have.DeepCopy()
		if changed := relabel(want); changed != (c.patch != `{}`) {
			t.Errorf("%s: changed is %v", name, changed)
		}
		patch, err := statusPatch(have, want)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if string(patch) != c.patch {
			t.Errorf("%s: the patch is %s, want %s", name, patch, c.patch)
		}
	}
}
