package wire

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// nested returns a schema n levels deep, encoded as protobuf.
func nested(t testing.TB, n int) []byte {
	t.Helper()
	schema := &apiextensionsv1.JSONSchemaProps{Type: "string"}
	for range n - 1 {
		schema = &apiextensionsv1.JSONSchemaProps{Type: "", Description: "0123", Not: schema}
	}
	data, err := schema.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestDeeper(t *testing.T) {
	for n := 1; n < 50; n++ {
		data := nested(t, n)
		// The strings of the innermost level may look like another level.
		if DeeperThan(data, n+1) {
			t.Errorf("%d levels are more than %d", n, n+1)
		}
		if n > 1 && !DeeperThan(data, n-2) {
			t.Errorf("%d levels are not more than %d", n, n-2)
		}
	}
	if DeeperThan(nil, 0) {
		t.Error("Deeper reports depth for shallow data")
	}
}

// FuzzDeeper checks that DeeperThan never underestimates the depth of a message that a recursive
// decoder accepts.
func FuzzDeeper(f *testing.F) {
	f.Add(nested(f, 3))
	f.Add(nested(f, 40))
	f.Fuzz(func(t *testing.T, data []byte) {
		const most = 20
		deeper := DeeperThan(data, most)
		var schema apiextensionsv1.JSONSchemaProps
		if err := schema.Unmarshal(data); err != nil {
			return
		}
		depth := 0
		for s := &schema; s != nil; s = s.Not {
			depth++
		}
		if depth-1 > most && !deeper {
			t.Errorf("%d levels are not detected", depth)
		}
	})
}
