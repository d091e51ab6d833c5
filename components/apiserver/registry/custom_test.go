package registry

import (
	"bytes"
	"testing"

	"hyperkube/internal/api"
)

// FuzzCustom decodes arbitrary stored values and encodes them again.
func FuzzCustom(f *testing.F) {
	f.Add([]byte(`{"kind":"Foo","apiVersion":"example.com/v1","metadata":{"name":"a","generation":1},"spec":{"n":1,"f":1.5,"s":"<&>"}}`))
	f.Add([]byte(`{"apiVersion":1,"kind":null}`))
	f.Add([]byte(`null`))
	f.Add([]byte(`{"kind":"A","apiVersion":"v1","metadata":[]}`))
	c := customCodec{&api.Custom{Load: func(api.Object) error { return nil }}}
	f.Fuzz(func(t *testing.T, data []byte) {
		obj, err := c.Decode(data, 7)
		if err != nil {
			return
		}
		custom := obj.(api.Object)
		custom.SetResourceVersion("")
		once, err := c.Encode(custom)
		if err != nil {
			return // numbers that JSON cannot represent
		}
		again, err := c.Decode(once, 7)
		if err != nil {
			t.Fatalf("decoding %q: %v", once, err)
		}
		again.(api.Object).SetResourceVersion("")
		twice, err := c.Encode(again)
		if err != nil || !bytes.Equal(once, twice) {
			t.Errorf("%q becomes %q, %v", once, twice, err)
		}
	})
}
