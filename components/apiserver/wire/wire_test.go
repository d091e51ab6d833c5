package wire

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"hyperkube/internal/api/catalog"
)

func decode(t *testing.T, data []byte) runtime.Object {
	t.Helper()
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiextensionsv1.AddToScheme, apiregistrationv1.AddToScheme} {
		if err := add(known); err != nil {
			t.Fatal(err)
		}
	}
	obj, _, err := protobuf.NewSerializer(known, known).Decode(data, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

// TestEveryKind decodes spliced objects with the published decoder, for every kind. All kinds must
// have their metadata and items in the fields that this package uses.
func TestEveryKind(t *testing.T) {
	for _, res := range catalog.Resources() {
		if res.Review {
			continue
		}
		kind, listKind := NewKind(res.GVK()), NewKind(res.GroupVersion().WithKind(res.ListKind))
		obj := res.New()
		obj.SetName("n")
		obj.SetLabels(map[string]string{"a": "b"})
		obj.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "m"}})
		stored, err := kind.Store(obj.(Sized))
		if err != nil {
			t.Fatal(err)
		}
		decode(t, stored) // other decoders skip the level
		raw, current, err := Raw(stored)
		if err != nil || !current {
			t.Fatalf("%s: %v %v", res.GVK(), current, err)
		}
		const revision = 1234567
		want := obj.DeepCopyObject().(metav1.Object)
		want.SetResourceVersion("1234567")

		whole := kind.AppendProto(nil, raw, revision)
		if len(whole) != kind.Size(raw, revision) {
			t.Errorf("%s: size %d, not %d", res.GVK(), len(whole), kind.Size(raw, revision))
		}
		got := decode(t, whole)
		got.GetObjectKind().SetGroupVersionKind(obj.GetObjectKind().GroupVersionKind())
		if !apiequality.Semantic.DeepEqual(got, want) {
			t.Errorf("%s: %+v\nnot %+v", res.GVK(), got, want)
		}

		l := NewProtoList(listKind, ListMeta(nil, 99, "token", 7))
		l.Count(raw, revision)
		l.Count(raw, 1)
		data := l.Tail(l.Item(l.Item(l.Head(nil), raw, revision), raw, 1))
		if len(data) != l.Size() {
			t.Errorf("%s: list of %d, not %d", res.GVK(), len(data), l.Size())
		}
		list := decode(t, data)
		meta := list.(metav1.ListInterface)
		if meta.GetResourceVersion() != "99" || meta.GetContinue() != "token" || *meta.GetRemainingItemCount() != 7 {
			t.Errorf("%s: %+v", res.GVK(), meta)
		}
		items := reflect.ValueOf(list).Elem().FieldByName("Items")
		if items.Len() != 2 || items.Index(0).Addr().Interface().(metav1.Object).GetResourceVersion() != "1234567" {
			t.Errorf("%s: %+v", res.GVK(), items)
		}

		metadata, err := Metadata(raw)
		if err != nil {
			t.Fatal(err)
		}
		partial := &metav1.PartialObjectMetadata{}
		if err := partial.Unmarshal(appendVersion(bytes.Clone(metadata), revision)); err != nil {
			t.Fatal(err)
		}
		if partial.Name != "n" || partial.ResourceVersion != "1234567" {
			t.Errorf("%s: %+v", res.GVK(), partial)
		}

		unmanaged, err := AppendUnmanaged([]byte("before"), raw)
		if err != nil {
			t.Fatal(err)
		}
		got = decode(t, kind.AppendProto(nil, unmanaged[len("before"):], revision))
		got.GetObjectKind().SetGroupVersionKind(obj.GetObjectKind().GroupVersionKind())
		want.SetManagedFields(nil)
		if !apiequality.Semantic.DeepEqual(got, want) {
			t.Errorf("%s: %+v\nnot %+v", res.GVK(), got, want)
		}

		text, err := json.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		if again := kind.Untyped(kind.AppendJSON(nil, text)); !bytes.Equal(again, text) {
			t.Errorf("%s: %s\nnot %s", res.GVK(), again, text)
		}
	}
}

func TestEvents(t *testing.T) {
	kind := NewKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	cm := &corev1.ConfigMap{Data: map[string]string{"k": "v"}}
	raw, err := cm.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	frame := kind.AppendProtoEvent(nil, "ADDED", raw, 5)
	var ev metav1.WatchEvent
	if err := ev.Unmarshal(frame[4:]); err != nil {
		t.Fatal(err)
	}
	if got := decode(t, ev.Object.Raw).(*corev1.ConfigMap); ev.Type != "ADDED" || got.ResourceVersion != "5" || got.Data["k"] != "v" {
		t.Errorf("%s %+v", ev.Type, got)
	}
}

func FuzzEnvelope(f *testing.F) {
	kind := NewKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	stored, err := kind.Store(&corev1.ConfigMap{})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(stored)
	f.Add([]byte(Magic))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err1 := ParseEnvelope(data)
		raw, _, err2 := Raw(data)
		if err1 == nil && (err2 != nil || !bytes.Equal(raw, e.Raw)) {
			t.Errorf("%x: %v", data, err2)
		}
		if err1 == nil {
			_, _ = Metadata(e.Raw)
			if small, err := AppendUnmanaged(nil, e.Raw); err == nil {
				if again, err := AppendUnmanaged(nil, small); err != nil || !bytes.Equal(again, small) {
					t.Errorf("%x, and again %x, %v", small, again, err)
				}
			}
		}
	})
}
