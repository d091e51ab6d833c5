package checkpoint

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestDecode(t *testing.T) {
	entries := []PodDevicesEntry{{PodUID: "u", ContainerName: "c", ResourceName: "example.com/d", DeviceIDs: DevicesPerNUMA{0: {"a"}, NoNUMANode: {"b", "c"}}, AllocResp: []byte{1, 2}}}
	known := map[string][]string{"example.com/d": {"a", "b", "c"}}
	raw, err := Encode(entries, known)
	if err != nil {
		t.Fatal(err)
	}
	gotEntries, gotKnown, err := Decode(raw)
	if err != nil || !reflect.DeepEqual(gotEntries, entries) || !reflect.DeepEqual(gotKnown, known) {
		t.Errorf("%v, %v, %v", gotEntries, gotKnown, err)
	}
	if _, _, err := Decode([]byte(strings.Replace(string(raw), `"a"`, `"x"`, 1))); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a changed file: %v", err)
	}
}

// TestUpstreams decodes a file that upstream's kubelet has written.
func TestUpstreams(t *testing.T) {
	raw := `{"Data":{"PodDeviceEntries":[{"PodUID":"9ac2a04b","ContainerName":"main","ResourceName":"example.com/gpu","DeviceIDs":{"0":["gpu-0"]},"AllocResp":"CgwKAUESB2dwdS0w"}],` +
		`"RegisteredDevices":{"example.com/gpu":["gpu-0","gpu-1"]}},"Checksum":575201522}`
	entries, known, err := Decode([]byte(raw))
	if err != nil || len(entries) != 1 || entries[0].DeviceIDs[0][0] != "gpu-0" || len(known["example.com/gpu"]) != 2 {
		t.Fatalf("%v, %v, %v", entries, known, err)
	}
	if again, err := Encode(entries, known); err != nil || string(again) != raw {
		t.Errorf("%s, %v", again, err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"Data":{"PodDeviceEntries":[{"PodUID":"u","DeviceIDs":{"-1":["1"]}}]},"Checksum":1}`))
	f.Fuzz(func(_ *testing.T, raw []byte) { _, _, _ = Decode(raw) })
}
