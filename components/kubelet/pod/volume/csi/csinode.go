package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"hyperkube/internal/base/backoff"
)

// nodeIDAnnotation is the annotation of Nodes with a JSON object that maps the names of CSI drivers to their
// IDs of the node.
const nodeIDAnnotation = "csi.volume.kubernetes.io/nodeid"

// migrated is the annotation of a CSINode that lists the in-tree volume plugins whose volumes are
// served by CSI drivers.
const migrated = "storage.alpha.kubernetes.io/migrated-plugins"

// migratedPlugins is the value of the annotation migrated: all in-tree plugins that have been migrated to
// CSI, as in upstream.
const migratedPlugins = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder," +
	"kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume"

// ensureCSINode makes sure that the CSINode exists even if no driver has registered: the scheduler and the
// cluster autoscaler wait for it. It first waits for the Node object, and retries until it succeeds or ctx is
// done. Without an API server it does nothing.
func (p *Plugin) ensureCSINode(ctx context.Context) {
	if p.cfg.Kube == nil {
		return
	}
	var node *v1.Node
	if err := p.await(ctx, func() bool { node = p.cfg.Node(); return node != nil }); err != nil {
		return
	}
	retry := backoff.Backoff{First: 100 * time.Millisecond, Max: 10 * time.Second}
	for {
		p.csiNode.Lock()
		err := p.changeCSINode(ctx, node, slices.Clone)
		p.csiNode.Unlock()
		if err == nil || ctx.Err() != nil {
			return
		}
		p.cfg.Log.Warn("creating CSINode failed; the scheduler cannot count attached volumes of the node until a retry succeeds, retrying with back-off", "node", node.Name, "err", err)
		if !retry.Pause(ctx) {
			return
		}
	}
}

// registerDriver registers the driver d in the API: in the CSINode, and in the annotation nodeIDAnnotation
// and the topology labels of the Node. It waits until the Node object is known. Without an API server it does
// nothing.
func (p *Plugin) registerDriver(ctx context.Context, d *driver) error {
	if p.cfg.Kube == nil {
		return nil
	}
	p.csiNode.Lock()
	defer p.csiNode.Unlock()
	var node *v1.Node
	if err := p.await(ctx, func() bool { node = p.cfg.Node(); return node != nil }); err != nil {
		return fmt.Errorf("waiting for the Node object: %w", err)
	}
	name := d.plugin.Name
	ids, err := parseNodeIDs(node)
	if err != nil {
		return err
	}
	segments := d.info.GetAccessibleTopology().GetSegments()
	for key, value := range segments {
		if have, ok := node.Labels[key]; ok && have != value && strings.HasPrefix(key, "kubernetes.io/") {
			return fmt.Errorf("detected topology value collision: driver reported %q:%q but existing label is %q:%q", key, value, key, have)
		}
	}
	if ids[name] != d.info.NodeId || !contains(node.Labels, segments) {
		// Another driver may have registered since the Node was last observed.
		fresh, err := p.cfg.Kube.CoreV1().Nodes().Get(ctx, p.cfg.NodeName, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("error updating node: %w", err)
		}
		if ids, err = parseNodeIDs(fresh); err != nil {
			return err
		}
		ids[name] = d.info.NodeId
		if err := p.patchNode(ctx, ids, segments); err != nil {
			return err
		}
	}
	entry := storagev1.CSINodeDriver{Name: name, NodeID: d.info.NodeId, TopologyKeys: slices.Sorted(maps.Keys(segments)), Allocatable: allocatable(d.info)}
	add := func(list []storagev1.CSINodeDriver) []storagev1.CSINodeDriver {
		return append(without(list, name), entry)
	}
	err = p.changeCSINode(ctx, node, add)
	if apierrors.IsInvalid(err) {
		// An entry is immutable: delete it and add it again.
		err = p.changeCSINode(ctx, node, func(list []storagev1.CSINodeDriver) []storagev1.CSINodeDriver { return without(list, name) })
		if err == nil {
			err = p.changeCSINode(ctx, node, add)
		}
	}
	return err
}

// unregisterDriver removes the entries that registerDriver has added to the CSINode and the annotation of the
// Node. It does nothing if the driver has registered again, before the Node object is known, and without an API
// server. The topology labels remain.
func (p *Plugin) unregisterDriver(ctx context.Context, name string) error {
	if p.cfg.Kube == nil {
		return nil
	}
	p.csiNode.Lock()
	defer p.csiNode.Unlock()
	p.mu.Lock()
	back := p.drivers[name] != nil
	p.mu.Unlock()
	node := p.cfg.Node()
	if back || node == nil {
		return nil
	}
	err := p.changeCSINode(ctx, node, func(list []storagev1.CSINodeDriver) []storagev1.CSINodeDriver { return without(list, name) })
	ids, idErr := parseNodeIDs(node)
	if idErr == nil && ids[name] != "" {
		delete(ids, name)
		idErr = p.patchNode(ctx, ids, nil)
	}
	return errors.Join(err, idErr)
}

// without returns the list without the driver of that name.
func without(list []storagev1.CSINodeDriver, name string) []storagev1.CSINodeDriver {
	return slices.DeleteFunc(slices.Clone(list), func(d storagev1.CSINodeDriver) bool { return d.Name == name })
}

// contains reports whether all has all entries of part.
func contains(all, part map[string]string) bool {
	for k, v := range part {
		if have, ok := all[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// parseNodeIDs returns the entries of the annotation nodeIDAnnotation of the Node: the driver's ID of the node,
// by driver name. Without the annotation the map is empty.
func parseNodeIDs(node *v1.Node) (map[string]string, error) {
	out := map[string]string{}
	if raw := node.Annotations[nodeIDAnnotation]; raw != "" {
		if err := json.Unmarshal([]byte(raw), &out); err != nil {
			return nil, fmt.Errorf("decoding the node's annotation %s: %w", nodeIDAnnotation, err)
		}
	}
	return out, nil
}

// patchNode sets the annotation nodeIDAnnotation of the Node to ids, or removes it if ids is empty, and adds
// labels.
func (p *Plugin) patchNode(ctx context.Context, ids, labels map[string]string) error {
	meta := map[string]any{}
	if len(ids) == 0 {
		meta["annotations"] = map[string]any{nodeIDAnnotation: nil}
	} else {
		raw, err := json.Marshal(ids)
		if err != nil {
			return fmt.Errorf("encoding the node's IDs: %w", err)
		}
		meta["annotations"] = map[string]string{nodeIDAnnotation: string(raw)}
	}
	if len(labels) > 0 {
		meta["labels"] = labels
	}
	patch, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return fmt.Errorf("encoding the node's patch: %w", err)
	}
	if _, err := p.cfg.Kube.CoreV1().Nodes().Patch(ctx, p.cfg.NodeName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("error updating node: %w", err)
	}
	return nil
}

// changeCSINode sets the list of drivers of the CSINode to the result of change, which gets the current list
// and must not modify it. It creates the CSINode of node if it does not exist, does not write if nothing
// changes, and retries after conflicts. The caller must hold p.csiNode.
func (p *Plugin) changeCSINode(ctx context.Context, node *v1.Node, change func([]storagev1.CSINodeDriver) []storagev1.CSINodeDriver) error {
	nodes := p.cfg.Kube.StorageV1().CSINodes()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		have, err := nodes.Get(ctx, p.cfg.NodeName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			fresh := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{
				Name: p.cfg.NodeName, Annotations: map[string]string{migrated: migratedPlugins},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
			}}
			fresh.Spec.Drivers = change([]storagev1.CSINodeDriver{})
			_, err = nodes.Create(ctx, fresh, metav1.CreateOptions{})
			return err
		}
		if err != nil {
			return err
		}
		want := have.DeepCopy()
		want.Spec.Drivers = change(have.Spec.Drivers)
		if want.Spec.Drivers == nil {
			want.Spec.Drivers = []storagev1.CSINodeDriver{}
		}
		if slices.EqualFunc(have.Spec.Drivers, want.Spec.Drivers, sameDriver) && have.Annotations[migrated] == migratedPlugins {
			return nil
		}
		if want.Annotations == nil {
			want.Annotations = map[string]string{}
		}
		want.Annotations[migrated] = migratedPlugins
		_, err = nodes.Update(ctx, want, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("error updating CSINode: %w", err)
	}
	return nil
}

// sameDriver reports whether a and b are equal entries of a CSINode: driver, ID of the node, topology keys and
// maximum number of volumes.
func sameDriver(a, b storagev1.CSINodeDriver) bool {
	count := func(d storagev1.CSINodeDriver) int32 {
		if d.Allocatable == nil || d.Allocatable.Count == nil {
			return -1
		}
		return *d.Allocatable.Count
	}
	return a.Name == b.Name && a.NodeID == b.NodeID && slices.Equal(a.TopologyKeys, b.TopologyKeys) && count(a) == count(b)
}
