// Package checkpoint encodes and decodes the checkpoint file of allocated devices in upstream's
// format: device monitors read the file, and a kubelet can replace another one without losing
// allocations. The names of the package, the types and the fields are input of the checksum and
// must not be changed.
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"

	"k8s.io/utils/dump"
)

// File is the content of the checkpoint file, as JSON.
type File struct {
	Data     checkpointData
	Checksum uint64
}

// checkpointData is the data that the checksum covers.
type checkpointData struct {
	PodDeviceEntries  []PodDevicesEntry
	RegisteredDevices map[string][]string
}

// PodDevicesEntry describes the devices of one resource that are allocated to one container.
// AllocResp is the plugin's response, in protobuf.
type PodDevicesEntry struct {
	PodUID        string
	ContainerName string
	ResourceName  string
	DeviceIDs     DevicesPerNUMA
	AllocResp     []byte
}

// DevicesPerNUMA are device IDs by NUMA node. A device on several nodes is listed for each of them.
type DevicesPerNUMA map[int64][]string

// NoNUMANode is the key for devices that are not on a NUMA node.
const NoNUMANode = -1

// ErrCorrupt is wrapped by the error of Decode for a file whose checksum does not match its data.
var ErrCorrupt = errors.New("checkpoint is corrupted")

// sum returns the checksum of the data, which equals upstream's.
func (d *checkpointData) sum() uint64 {
	h := fnv.New32a()
	fmt.Fprint(h, dump.ForHash(*d))
	return uint64(h.Sum32())
}

// Encode returns the content of a checkpoint file. entries are the allocations, and known the IDs of all
// devices by resource.
func Encode(entries []PodDevicesEntry, known map[string][]string) ([]byte, error) {
	f := File{Data: checkpointData{PodDeviceEntries: entries, RegisteredDevices: known}}
	f.Checksum = f.Data.sum()
	raw, err := json.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("encoding device checkpoint: %w", err)
	}
	return raw, nil
}

// Decode returns the allocations and the IDs of all devices in the content of a checkpoint file. A wrong
// checksum is an error.
func Decode(raw []byte) (entries []PodDevicesEntry, known map[string][]string, err error) {
	var f File
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, nil, fmt.Errorf("decoding device checkpoint: %w", err)
	}
	if f.Checksum != f.Data.sum() {
		return nil, nil, fmt.Errorf("decoding device checkpoint: %w", ErrCorrupt)
	}
	return f.Data.PodDeviceEntries, f.Data.RegisteredDevices, nil
}
