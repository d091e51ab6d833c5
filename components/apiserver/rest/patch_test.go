package rest

import (
	"encoding/json"
	"math"
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

// TestConfigurationNumbers checks that applied numbers are decoded exactly from both JSON and YAML.
func TestConfigurationNumbers(t *testing.T) {
	for number, want := range map[string]any{
		"9223372036854775807": int64(math.MaxInt64), "9007199254740993": int64(9007199254740993), "-3": int64(-3),
		"4.0": int64(4), "1e3": int64(1000), "0.5": 0.5,
	} {
		for _, body := range []string{`{"number": [` + number + `]}`, "number: [" + number + "]\n"} {
			config, _, err := (&patcher{call: &call{}, body: []byte(body)}).configuration()
			if err != nil {
				t.Fatal(err)
			}
			if got := config.Object["number"].([]any)[0]; got != want {
				t.Errorf("%s is applied as %T %v, want %v", body, got, got, want)
			}
		}
	}
}
