package rest

import (
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func FuzzPatchJSON(f *testing.F) {
	f.Add(true, []byte(`{"data":{"k":null}}`))
	f.Add(false, []byte(`[{"op":"replace","path":"/data/k","value":"w"}]`))
	f.Add(false, []byte(`[{"op":"copy","from":"/data","path":"/data/x"}]`))
	f.Fuzz(func(t *testing.T, merge bool, patch []byte) {
		kind := types.JSONPatchType
		if merge {
			kind = types.MergePatchType
		}
		patched, _, err := patchJSON(kind, patch, []byte(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"n"},"data":{"k":"v"}}`), "Strict")
		if err == nil && !json.Valid(patched) {
			t.Errorf("%s makes %s", patch, patched)
		}
	})
}
