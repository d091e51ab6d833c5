// Package checkpoint is the file in which a kubelet remembers who has which devices,
// as upstream's writes it: monitors of devices read it, and a kubelet that takes the
// place of another finds what that one gave away. The checksum is of the names of
// types and fields, too, so that neither they nor the package's may change.
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"

	"k8s.io/utils/dump"
)

// File is the whole.
type File struct {
	Data     checkpointData
	Checksum uint64
}

// checkpointData is what the checksum is of.
type checkpointData struct {
	PodDeviceEntries  []PodDevicesEntry
	RegisteredDevices map[string][]string
}

// PodDevicesEntry is what one container has of one resource. AllocResp is what the
// plugin answered, in protobuf.
type PodDevicesEntry struct {
	PodUID        string
	ContainerName string
	ResourceName  string
	DeviceIDs     DevicesPerNUMA
	AllocResp     []byte
}

// DevicesPerNUMA are the IDs of devices by the NUMA nodes that they are on.
type DevicesPerNUMA map[int64][]string

// Nowhere stands for the node of devices that are on none.
const Nowhere = -1

// ErrCorrupt is returned for a file that is not as it was written.
var ErrCorrupt = errors.New("checkpoint is corrupted")

// sum is the checksum of what is kept.
func (d *checkpointData) sum() uint64 {
	h := fnv.New32a()
	fmt.Fprint(h, dump.ForHash(*d))
	return uint64(h.Sum32())
}

// Encode makes the file of entries and of all devices that are known, by resource.
func Encode(entries []PodDevicesEntry, known map[string][]string) ([]byte, error) {
	f := File{Data: checkpointData{PodDeviceEntries: entries, RegisteredDevices: known}}
	f.Checksum = f.Data.sum()
	raw, err := json.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("encoding the record of devices: %w", err)
	}
	return raw, nil
}

// Decode reads a file.
func Decode(raw []byte) (entries []PodDevicesEntry, known map[string][]string, err error) {
	var f File
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, nil, fmt.Errorf("decoding the record of devices: %w", err)
	}
	if f.Checksum != f.Data.sum() {
		return nil, nil, fmt.Errorf("decoding the record of devices: %w", ErrCorrupt)
	}
	return f.Data.PodDeviceEntries, f.Data.RegisteredDevices, nil
}
