package devices

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"hyperkube/components/kubelet/devices/checkpoint"
	"hyperkube/internal/atomicfile"
)

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
	entries, known, err := checkpoint.Decode(raw)
	if err != nil {
		m.cfg.Log.Warn("the record of who has which devices is not readable and not used", "error", err)
		return nil
	}
	for _, e := range entries {
		resp := &api.ContainerAllocateResponse{}
		if err := proto.Unmarshal(e.AllocResp, resp); err != nil {
			m.cfg.Log.Warn("an entry of the record of devices is not readable and not used", "error", err)
			continue
		}
		uid := types.UID(e.PodUID)
		if m.given[uid] == nil {
			m.given[uid] = map[string]map[string]*Grant{}
		}
		if m.given[uid][e.ContainerName] == nil {
			m.given[uid][e.ContainerName] = map[string]*Grant{}
		}
		// A device on several nodes is listed at each.
		ids := slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Values(e.DeviceIDs))...)))
		m.given[uid][e.ContainerName][e.ResourceName] = &Grant{IDs: slices.Compact(ids), Response: resp}
	}
	// A plugin that was there will be again: until then its devices are told as
	// unhealthy, so that pods that have some are not turned away.
	for name, ids := range known {
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

// save writes the checkpoint. The caller holds mu.
func (m *Manager) save() error {
	entries := []checkpoint.PodDevicesEntry{}
	for _, uid := range slices.Sorted(maps.Keys(m.given)) {
		if m.ended[uid] {
			continue
		}
		for _, container := range slices.Sorted(maps.Keys(m.given[uid])) {
			for _, name := range slices.Sorted(maps.Keys(m.given[uid][container])) {
				g := m.given[uid][container][name]
				raw, err := proto.Marshal(g.Response)
				if err != nil {
					return fmt.Errorf("encoding the record of devices: %w", err)
				}
				entries = append(entries, checkpoint.PodDevicesEntry{
					PodUID: string(uid), ContainerName: container, ResourceName: name, DeviceIDs: m.byNode(name, g.IDs), AllocResp: raw,
				})
			}
		}
	}
	known := map[string][]string{}
	for name, p := range m.resources {
		known[name] = slices.Sorted(maps.Keys(p.devices))
	}
	raw, err := checkpoint.Encode(entries, known)
	if err != nil {
		return err
	}
	return atomicfile.Write(atomicfile.File{Path: m.checkpoint(), Data: raw, Mode: 0o600})
}

// byNode sorts devices of a resource by the NUMA nodes that they are on. The caller
// holds mu.
func (m *Manager) byNode(name string, ids []string) checkpoint.DevicesPerNUMA {
	out := checkpoint.DevicesPerNUMA{}
	for _, id := range ids {
		var d *api.Device
		if p := m.resources[name]; p != nil {
			d = p.devices[id]
		}
		nodes := d.GetTopology().GetNodes()
		if len(nodes) == 0 {
			out[checkpoint.Nowhere] = append(out[checkpoint.Nowhere], id)
		}
		for _, n := range nodes {
			out[n.ID] = append(out[n.ID], id)
		}
	}
	return out
}
