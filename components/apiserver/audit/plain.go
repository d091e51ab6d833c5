package audit

import (
	"encoding/json"
	"errors"
	"io"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func (t *trail) gvr() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: t.info.APIGroup, Version: t.info.APIVersion, Resource: t.info.Resource}
}

// plain writes objects as JSON as they are, for the library that makes events:
// what it is given has been on the wire in that version already.
type plain struct{}

var errNoDecoder = errors.New("audit events are only written")

// SupportedMediaTypes as runtime.NegotiatedSerializer.
func (p plain) SupportedMediaTypes() []runtime.SerializerInfo {
	return []runtime.SerializerInfo{{MediaType: runtime.ContentTypeJSON, Serializer: p}}
}

// EncoderForVersion as runtime.NegotiatedSerializer.
func (p plain) EncoderForVersion(runtime.Encoder, runtime.GroupVersioner) runtime.Encoder { return p }

// DecoderToVersion as runtime.NegotiatedSerializer.
func (p plain) DecoderToVersion(runtime.Decoder, runtime.GroupVersioner) runtime.Decoder { return p }

// Encode as runtime.Encoder.
func (plain) Encode(obj runtime.Object, w io.Writer) error {
	var v any = obj
	if u, ok := obj.(*unstructured.Unstructured); ok {
		v = u.Object
	}
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

// Identifier as runtime.Encoder.
func (plain) Identifier() runtime.Identifier { return "audit" }

// Decode as runtime.Decoder; it never does.
func (plain) Decode([]byte, *schema.GroupVersionKind, runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	return nil, nil, errNoDecoder
}
