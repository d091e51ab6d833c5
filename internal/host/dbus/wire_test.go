package dbus

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"testing"

	lib "github.com/godbus/dbus/v5"
)

// TestCall checks that another D-Bus implementation can decode an encoded call.
func TestCall(t *testing.T) {
	raw, err := encodeCall(Call{
		Destination: "org.example.Some", Path: "/org/example", Interface: "org.example.Face", Member: "Do", Args: []any{"one", int32(-2), "three"},
	}, 7)
	if err != nil {
		t.Fatal(err)
	}
	m, err := lib.DecodeMessage(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	if m.Serial() != 7 || m.Type != lib.TypeMethodCall || m.Headers[lib.FieldMember].Value() != "Do" || m.Headers[lib.FieldDestination].Value() != "org.example.Some" ||
		!reflect.DeepEqual(m.Body, []any{"one", int32(-2), "three"}) {
		t.Errorf("%v", m)
	}
	if _, err := encodeCall(Call{Args: []any{1.5}}, 1); err == nil {
		t.Error("a float was accepted")
	}
}

// encoded returns a message that another D-Bus implementation encoded.
func encoded(t testing.TB, o binary.ByteOrder, body ...any) []byte {
	t.Helper()
	m := &lib.Message{Type: lib.TypeSignal, Headers: map[lib.HeaderField]lib.Variant{
		lib.FieldPath: lib.MakeVariant(lib.ObjectPath("/a/b")), lib.FieldInterface: lib.MakeVariant("c.d"), lib.FieldMember: lib.MakeVariant("E"),
		lib.FieldSignature: lib.MakeVariant(lib.SignatureOf(body...)),
	}, Body: body}
	var out bytes.Buffer
	if err := m.EncodeTo(&out, o); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestDecode(t *testing.T) {
	body := []any{
		byte(1), true, int16(-2), uint16(3), int32(-4), uint32(5), int64(-6), uint64(7), 1.5, "text", lib.ObjectPath("/x"),
		lib.MakeVariant(uint64(8)), []string{"a", "b"}, map[string]uint32{"k": 9}, struct {
			A string
			B bool
		}{"in", true},
	}
	want := []any{
		byte(1), true, int16(-2), uint16(3), int32(-4), uint32(5), int64(-6), uint64(7), 1.5, "text", "/x",
		uint64(8), []any{"a", "b"}, []any{[]any{"k", uint32(9)}}, []any{"in", true},
	}
	for _, o := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		m, err := decode(encoded(t, o, body...))
		if err != nil {
			t.Fatal(err)
		}
		if m.path != "/a/b" || m.iface != "c.d" || m.member != "E" || !reflect.DeepEqual(m.body, want) {
			t.Errorf("%+v", m)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(encoded(f, binary.LittleEndian, "x", lib.MakeVariant(true), map[string]string{"a": "b"}))
	f.Fuzz(func(_ *testing.T, raw []byte) { _, _ = decode(raw) })
}
