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

// markExpanding sets the claim's resize status to NodeResizeInProgress, unless it already is, and returns the
// updated claim. It returns an error if the claim has changed since pvc was read.
func (p *Plugin) markExpanding(ctx context.Context, pvc *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	if pvc.Status.AllocatedResourceStatuses[v1.ResourceStorage] == v1.PersistentVolumeClaimNodeResizeInProgress {
		return pvc, nil
	}
	return p.patchStatus(ctx, pvc, true, map[string]any{
		"allocatedResourceStatuses": map[string]any{string(v1.ResourceStorage): v1.PersistentVolumeClaimNodeResizeInProgress},
	})
}

// markExpanded writes the new size of the volume to the claim's status and removes the resize status and
// conditions. It returns an error if the claim has changed since pvc was read.
func (p *Plugin) markExpanded(ctx context.Context, pvc *v1.PersistentVolumeClaim, size resource.Quantity) error {
	change := map[string]any{
		"capacity":   map[string]any{string(v1.ResourceStorage): size},
		"conditions": slices.DeleteFunc(slices.Clone(pvc.Status.Conditions), isResizeCondition),
	}
	if states := pvc.Status.AllocatedResourceStatuses; len(states) == 1 && states[v1.ResourceStorage] != "" {
		change["allocatedResourceStatuses"] = nil
	} else if len(states) > 0 {
		change["allocatedResourceStatuses"] = map[string]any{string(v1.ResourceStorage): nil}
	}
	_, err := p.patchStatus(ctx, pvc, true, change)
	return err
}

// markFailed records in the claim's status, with the condition NodeResizeError, that the node could not expand
// the volume. infeasible means that a retry cannot succeed; it sets the resize status to NodeResizeInfeasible,
// and the resizer in the control plane then starts again.
func (p *Plugin) markFailed(ctx context.Context, pvc *v1.PersistentVolumeClaim, infeasible bool, why error) error {
	change := map[string]any{}
	if infeasible {
		change["allocatedResourceStatuses"] = map[string]any{string(v1.ResourceStorage): v1.PersistentVolumeClaimNodeResizeInfeasible}
	}
	recorded := slices.ContainsFunc(pvc.Status.Conditions, func(c v1.PersistentVolumeClaimCondition) bool {
		return c.Type == v1.PersistentVolumeClaimNodeResizeError && c.Status == v1.ConditionTrue
	})
	if !recorded {
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

// isResizeCondition reports whether c is one of the conditions of a resize, which are removed when the resize
// is complete.
func isResizeCondition(c v1.PersistentVolumeClaimCondition) bool {
	switch c.Type {
	case v1.PersistentVolumeClaimFileSystemResizePending, v1.PersistentVolumeClaimResizing, v1.PersistentVolumeClaimNodeResizeError, v1.PersistentVolumeClaimControllerResizeError:
		return true
	}
	return false
}

// patchStatus patches the status of the claim pvc and returns the updated claim. With exact, the patch fails
// if the claim has changed since pvc was read, and the conditions in change replace all others; otherwise
// they are merged.
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
