package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// markGrowing writes that the node has begun to grow a claim's volume, and
// returns the claim as it is then.
func (p *Plugin) markGrowing(ctx context.Context, pvc *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	if pvc.Status.AllocatedResourceStatuses[v1.ResourceStorage] == v1.PersistentVolumeClaimNodeResizeInProgress {
		return pvc, nil
	}
	return p.patchStatus(ctx, pvc, true, map[string]any{
		"allocatedResourceStatuses": map[string]any{string(v1.ResourceStorage): v1.PersistentVolumeClaimNodeResizeInProgress},
	})
}

// markGrown writes a claim's new size, and that nothing is left to be done.
func (p *Plugin) markGrown(ctx context.Context, pvc *v1.PersistentVolumeClaim, size resource.Quantity) error {
	change := map[string]any{
		"capacity":   map[string]any{string(v1.ResourceStorage): size},
		"conditions": slices.DeleteFunc(slices.Clone(pvc.Status.Conditions), ofResizing),
	}
	if states := pvc.Status.AllocatedResourceStatuses; len(states) == 1 && states[v1.ResourceStorage] != "" {
		change["allocatedResourceStatuses"] = nil
	} else if len(states) > 0 {
		change["allocatedResourceStatuses"] = map[string]any{string(v1.ResourceStorage): nil}
	}
	_, err := p.patchStatus(ctx, pvc, true, change)
	return err
}

// markFailed writes that the node could not grow a claim's volume, and whether
// it ever can: whoever grows volumes in the control plane begins anew when it
// cannot.
func (p *Plugin) markFailed(ctx context.Context, pvc *v1.PersistentVolumeClaim, infeasible bool, why error) error {
	change := map[string]any{}
	if infeasible {
		change["allocatedResourceStatuses"] = map[string]any{string(v1.ResourceStorage): v1.PersistentVolumeClaimNodeResizeInfeasible}
	}
	told := slices.ContainsFunc(pvc.Status.Conditions, func(c v1.PersistentVolumeClaimCondition) bool {
		return c.Type == v1.PersistentVolumeClaimNodeResizeError && c.Status == v1.ConditionTrue
	})
	if !told {
		change["conditions"] = []v1.PersistentVolumeClaimCondition{{
			Type: v1.PersistentVolumeClaimNodeResizeError, Status: v1.ConditionTrue, LastTransitionTime: metav1.Now(),
			Message: fmt.Sprintf("failed to expand pvc with %v", why),
		}}
	}
	if len(change) == 0 {
		return nil
	}
	_, err := p.patchStatus(ctx, pvc, false, change)
	return err
}

// ofResizing tells whether a condition is about a claim's size.
func ofResizing(c v1.PersistentVolumeClaimCondition) bool {
	switch c.Type {
	case v1.PersistentVolumeClaimFileSystemResizePending, v1.PersistentVolumeClaimResizing, v1.PersistentVolumeClaimNodeResizeError, v1.PersistentVolumeClaimControllerResizeError:
		return true
	}
	return false
}

// patchStatus changes a claim's status. exact: only if the claim is as it was
// read, and its conditions are replaced by those in change; else they are added.
func (p *Plugin) patchStatus(ctx context.Context, pvc *v1.PersistentVolumeClaim, exact bool, change map[string]any) (*v1.PersistentVolumeClaim, error) {
	meta, kind := map[string]any{"uid": pvc.UID}, types.StrategicMergePatchType
	if exact {
		kind = types.MergePatchType
		meta["resourceVersion"] = pvc.ResourceVersion
	}
	patch, err := json.Marshal(map[string]any{"metadata": meta, "status": change})
	if err != nil {
		return nil, fmt.Errorf("encoding a claim's status: %w", err)
	}
	next, err := p.cfg.Kube.CoreV1().PersistentVolumeClaims(pvc.Namespace).Patch(ctx, pvc.Name, kind, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return nil, fmt.Errorf("patchPVCStatus failed to patch PVC %q: %w", pvc.Name, err)
	}
	return next, nil
}
