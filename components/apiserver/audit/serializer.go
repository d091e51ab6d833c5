package audit

import (
	"encoding/json"
	"errors"
	"io"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// gvr returns the group, version and resource that the request names.
func (t *requestRecord) gvr() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: t.info.APIGroup, Version: t.info.APIVersion, Resource: t.info.Resource}
}

// jsonSerializer is a serializer that encodes objects as JSON without conversion. The upstream audit library
// needs one, and the objects that it receives already have the request's version.
type jsonSerializer struct{}

// errNoDecoder is the error of jsonSerializer.Decode. The audit library only encodes objects.
var errNoDecoder = errors.New("audit events are only written")

// SupportedMediaTypes implements runtime.NegotiatedSerializer. Only JSON is supported.
func (p jsonSerializer) SupportedMediaTypes() []runtime.SerializerInfo {
	return []runtime.SerializerInfo{{MediaType: runtime.ContentTypeJSON, Serializer: p}}
}

// EncoderForVersion implements runtime.NegotiatedSerializer. It does not convert objects to the
// version.
func (p jsonSerializer) EncoderForVersion(runtime.Encoder, runtime.GroupVersioner) runtime.Encoder {
	return p
}

// DecoderToVersion implements runtime.NegotiatedSerializer. The returned decoder always fails.
func (p jsonSerializer) DecoderToVersion(runtime.Decoder, runtime.GroupVersioner) runtime.Decoder {
	return p
}

// Encode implements runtime.Encoder. It writes obj as JSON; a custom resource is written without conversion.
func (jsonSerializer) Encode(obj runtime.Object, w io.Writer) error {
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

// Identifier implements runtime.Encoder. It identifies the encoder in caches of encoded objects.
func (jsonSerializer) Identifier() runtime.Identifier { return "audit" }

// Decode implements runtime.Decoder. It always fails.
func (jsonSerializer) Decode([]byte, *schema.GroupVersionKind, runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	return nil, nil, errNoDecoder
}
