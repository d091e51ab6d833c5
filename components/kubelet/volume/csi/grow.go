package csi

import (
	"context"
	"encoding/json"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// grow has the driver grow a published volume whose claim is smaller than it.
// https://kubernetes.io/docs/concepts/storage/persistent-volumes/#csi-volume-expansion
func (p *Plugin) grow(ctx context.Context, d *driver, j *job) error {
	if j.claim == nil || j.readOnly || !d.expands() {
		return nil
	}
	want, have := j.pv.Spec.Capacity[v1.ResourceStorage], j.claim.Status.Capacity[v1.ResourceStorage]
	if want.Cmp(have) <= 0 {
		return nil
	}
	secrets, err := p.secret(ctx, j.expandRef)
	if err != nil {
		return err
	}
	staging := ""
	if d.stages() {
		staging = globalMount(p.places.staged(j.k))
	}
	call, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	resp, err := d.node.NodeExpandVolume(call, &csipb.NodeExpandVolumeRequest{
		VolumeId: j.k.handle, VolumePath: j.target(), StagingTargetPath: staging, VolumeCapability: j.capability(d), Secrets: secrets,
		CapacityRange: &csipb.CapacityRange{RequiredBytes: want.Value()},
	})
	if err != nil {
		p.event(j.pod, v1.EventTypeWarning, "VolumeResizeFailed", fmt.Sprintf("NodeExpandVolume.NodeExpandVolume failed for volume %q : %v", j.spec, err))
		return err
	}
	if n := resp.GetCapacityBytes(); n > want.Value() {
		want = *resource.NewQuantity(n, resource.BinarySI)
	}
	return p.tellSize(ctx, j, want)
}

// tellSize writes a claim's new size, and that nothing is left to be done.
func (p *Plugin) tellSize(ctx context.Context, j *job, size resource.Quantity) error {
	conditions := []v1.PersistentVolumeClaimCondition{}
	for _, c := range j.claim.Status.Conditions {
		switch c.Type {
		case v1.PersistentVolumeClaimFileSystemResizePending, v1.PersistentVolumeClaimResizing, v1.PersistentVolumeClaimNodeResizeError, v1.PersistentVolumeClaimControllerResizeError:
		default:
			conditions = append(conditions, c)
		}
	}
	status := map[string]any{
		"capacity":   v1.ResourceList{v1.ResourceStorage: size},
		"conditions": conditions,
	}
	if len(j.claim.Status.AllocatedResourceStatuses) > 0 {
		status["allocatedResourceStatuses"] = map[string]any{string(v1.ResourceStorage): nil}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": j.claim.UID, "resourceVersion": j.claim.ResourceVersion}, "status": status})
	if err != nil {
		return fmt.Errorf("encoding a claim's status: %w", err)
	}
	_, err = p.cfg.Kube.CoreV1().PersistentVolumeClaims(j.claim.Namespace).Patch(ctx, j.claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("mark PVC %q as file system resize finished failed: %w", j.claim.Namespace+"/"+j.claim.Name, err)
	}
	p.event(j.pod, v1.EventTypeNormal, "FileSystemResizeSuccessful", fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", j.spec, p.cfg.NodeName))
	if p.cfg.Events != nil {
		ref := &v1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: j.claim.Namespace, Name: j.claim.Name, UID: j.claim.UID}
		p.cfg.Events.Event(ref, v1.EventTypeNormal, "FileSystemResizeSuccessful", "MountVolume.NodeExpandVolume succeeded")
	}
	return nil
}

func (p *Plugin) event(pod *v1.Pod, kind, reason, message string) {
	if p.cfg.Events == nil {
		return
	}
	ref := &v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	p.cfg.Events.Event(ref, kind, reason, message)
}
