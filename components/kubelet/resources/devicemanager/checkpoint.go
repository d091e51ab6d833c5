package devicemanager

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

	"hyperkube/components/kubelet/resources/devicemanager/checkpoint"
	"hyperkube/internal/host/atomicfile"
)

// load restores allocations and known devices from the checkpoint, if there is one. A damaged checkpoint or
// entry is logged and ignored: devices are then allocated again when their containers are created. It returns
// an error if the file cannot be read from disk.
func (m *Manager) load() error {
	raw, err := os.ReadFile(m.checkpoint())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading device checkpoint: %w", err)
	}
	entries, known, err := checkpoint.Decode(raw)
	if err != nil {
		m.cfg.Log.Warn("file with the devices allocated to containers is unreadable and ignored; devices of running containers may be allocated to other containers: recreate pods that use devices", "file", m.checkpoint(), "err", err)
		return nil
	}
	for _, e := range entries {
		resp := &api.ContainerAllocateResponse{}
		if err := proto.Unmarshal(e.AllocResp, resp); err != nil {
			m.cfg.Log.Warn("stored devices of container are unreadable and ignored; they may be allocated to other containers: recreate the pod", "podUID", e.PodUID, "container", e.ContainerName, "resource", e.ResourceName, "err", err)
			continue
		}
		uid := types.UID(e.PodUID)
		if m.grants[uid] == nil {
			m.grants[uid] = map[string]map[string]*Grant{}
		}
		if m.grants[uid][e.ContainerName] == nil {
			m.grants[uid][e.ContainerName] = map[string]*Grant{}
		}
		// A device on several NUMA nodes is listed for each of them.
		ids := slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Values(e.DeviceIDs))...)))
		m.grants[uid][e.ContainerName][e.ResourceName] = &Grant{IDs: slices.Compact(ids), Response: resp}
	}
	// Devices of plugins that have not registered again are reported as unhealthy, so that pods
	// that use them are not rejected.
	for name, ids := range known {
		p := &registeredPlugin{devices: map[string]*api.Device{}, options: &api.DevicePluginOptions{}, stopped: time.Now()}
		for _, id := range ids {
			p.devices[id] = &api.Device{ID: id, Health: api.Unhealthy}
		}
		m.resources[name] = p
	}
	return nil
}

// saveIfChanged writes the checkpoint if the IDs of the devices of a resource have changed from before to now;
// a failure is logged. After a restart the kubelet must know the resources before their plugins register,
// because it would otherwise start containers without their devices. The caller must hold mu.
func (m *Manager) saveIfChanged(before, now map[string]*api.Device) {
	if maps.EqualFunc(before, now, func(*api.Device, *api.Device) bool { return true }) {
		return
	}
	if err := m.save(); err != nil {
		m.cfg.Log.Warn("writing file with the devices of device plugins failed; if the kubelet restarts, new devices are unknown until their plugin registers again; the file is written again at the next change of devices", "file", m.checkpoint(), "err", err)
	}
}

// Release records that no process of a pod runs any more, and removes its devices from the checkpoint. After
// a restart the kubelet can then free the devices before it has listed the pods.
func (m *Manager) Release(pod types.UID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.grants[pod] == nil || m.terminated[pod] {
		return nil
	}
	m.terminated[pod] = true
	return m.save()
}

// save writes the allocations and the known devices to the checkpoint file, from which load restores them after a
// restart. The caller must hold mu.
func (m *Manager) save() error {
	entries := []checkpoint.PodDevicesEntry{}
	for _, uid := range slices.Sorted(maps.Keys(m.grants)) {
		if m.terminated[uid] {
			continue
		}
		for _, container := range slices.Sorted(maps.Keys(m.grants[uid])) {
			for _, name := range slices.Sorted(maps.Keys(m.grants[uid][container])) {
				g := m.grants[uid][container][name]
				raw, err := proto.Marshal(g.Response)
				if err != nil {
					return fmt.Errorf("encoding device checkpoint: %w", err)
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

// byNode groups the device IDs of a resource by the NUMA nodes of the devices, for the checkpoint. A device with
// several nodes is in several groups; one with unknown nodes is in the group NoNUMANode. The caller must hold mu.
func (m *Manager) byNode(name string, ids []string) checkpoint.DevicesPerNUMA {
	out := checkpoint.DevicesPerNUMA{}
	for _, id := range ids {
		var d *api.Device
		if p := m.resources[name]; p != nil {
			d = p.devices[id]
		}
		nodes := d.GetTopology().GetNodes()
		if len(nodes) == 0 {
			out[checkpoint.NoNUMANode] = append(out[checkpoint.NoNUMANode], id)
		}
		for _, n := range nodes {
			out[n.ID] = append(out[n.ID], id)
		}
	}
	return out
}
