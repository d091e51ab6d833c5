package devices

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"hyperkube/internal/atomicfile"
)

// record is the checkpoint: who has what, and what there was.
type record struct {
	Entries []entry             `json:"podDeviceEntries"`
	Known   map[string][]string `json:"registeredDevices"`
}

type entry struct {
	Pod       types.UID `json:"podUID"`
	Container string    `json:"containerName"`
	Resource  string    `json:"resourceName"`
	Devices   []string  `json:"deviceIDs"`
	Response  []byte    `json:"allocResp"`
}

// load reads the checkpoint. One that cannot be read is not used: the devices
// are then allocated anew when their containers are.
func (m *Manager) load() error {
	raw, err := os.ReadFile(m.checkpoint())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading who has which devices: %w", err)
	}
	r, err := decode(raw)
	if err != nil {
		m.cfg.Log.Warn("the record of who has which devices is not readable and not used", "error", err)
		return nil
	}
	for _, e := range r.Entries {
		resp := &api.ContainerAllocateResponse{}
		if err := proto.Unmarshal(e.Response, resp); err != nil {
			m.cfg.Log.Warn("an entry of the record of devices is not readable and not used", "error", err)
			continue
		}
		if m.given[e.Pod] == nil {
			m.given[e.Pod] = map[string]map[string]*Grant{}
		}
		if m.given[e.Pod][e.Container] == nil {
			m.given[e.Pod][e.Container] = map[string]*Grant{}
		}
		m.given[e.Pod][e.Container][e.Resource] = &Grant{IDs: e.Devices, Response: resp}
	}
	// A plugin that was there will be again: until then its devices are told as
	// unhealthy, so that pods that have some are not turned away.
	for name, ids := range r.Known {
		p := &pool{devices: map[string]*api.Device{}, options: &api.DevicePluginOptions{}, ended: time.Now()}
		for _, id := range ids {
			p.devices[id] = &api.Device{ID: id, Health: api.Unhealthy}
		}
		m.resources[name] = p
	}
	return nil
}

// remember writes which devices there are, if others have come or some have gone:
// the next kubelet must know of them before their plugin has come to it, for else
// it would start containers without. The caller holds mu.
func (m *Manager) remember(before, now map[string]*api.Device) {
	if maps.EqualFunc(before, now, func(*api.Device, *api.Device) bool { return true }) {
		return
	}
	if err := m.save(); err != nil {
		m.cfg.Log.Warn("which devices there are cannot be recorded", "error", err)
	}
}

// Release lets the next kubelet know that nothing of a pod runs any more, before that
// one knows which pods there are.
func (m *Manager) Release(pod types.UID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.given[pod] == nil || m.ended[pod] {
		return nil
	}
	m.ended[pod] = true
	return m.save()
}

func decode(raw []byte) (record, error) {
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return record{}, fmt.Errorf("decoding the record of devices: %w", err)
	}
	return r, nil
}

// save writes the checkpoint. The caller holds mu.
func (m *Manager) save() error {
	r := record{Known: map[string][]string{}}
	for uid, containers := range m.given {
		if m.ended[uid] {
			continue
		}
		for container, grants := range containers {
			for name, g := range grants {
				raw, err := proto.Marshal(g.Response)
				if err != nil {
					return fmt.Errorf("encoding the record of devices: %w", err)
				}
				r.Entries = append(r.Entries, entry{Pod: uid, Container: container, Resource: name, Devices: g.IDs, Response: raw})
			}
		}
	}
	for name, p := range m.resources {
		for id := range p.devices {
			r.Known[name] = append(r.Known[name], id)
		}
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encoding the record of devices: %w", err)
	}
	return atomicfile.Write(atomicfile.File{Path: m.checkpoint(), Data: raw, Mode: 0o600})
}
