package wire

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// nested is a schema n levels deep, in protobuf.
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
		// The words within the innermost may look like one more.
		if Deeper(data, n+1) {
			t.Errorf("%d levels are more than %d", n, n+1)
		}
		if n > 1 && !Deeper(data, n-2) {
			t.Errorf("%d levels are not more than %d", n, n-2)
		}
	}
	if Deeper(nil, 0) {
		t.Error("nothing is deep")
	}
}

// What a decoder of a recursive type is given afterwards cannot be deeper than
// Deeper has said.
func FuzzDeeper(f *testing.F) {
	f.Add(nested(f, 3))
	f.Add(nested(f, 40))
	f.Fuzz(func(t *testing.T, data []byte) {
		const most = 20
		deeper := Deeper(data, most)
		var schema apiextensionsv1.JSONSchemaProps
		if err := schema.Unmarshal(data); err != nil {
			return
		}
		depth := 0
		for s := &schema; s != nil; s = s.Not {
			depth++
		}
		if depth-1 > most && !deeper {
			t.Errorf("%d levels were not noticed", depth)
		}
	})
}
