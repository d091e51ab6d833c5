package csi

import (
	"context"
	"fmt"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/kubelet/pod/volume"
)

// noNodeExpansion is the annotation of claims whose volumes need not be expanded on other nodes
// after the expansion on one node.
const noNodeExpansion = "volume.kubernetes.io/node-expansion-not-required"

// expansion is the state of the expansion of a volume on this node.
type expansion struct {
	// size is the current size on this node; zero before a pod has mounted the volume.
	size resource.Quantity
	// busy means that the driver does not expand volumes that are in use. The expansion is retried
	// when another pod mounts the volume.
	busy bool
	// final means that the driver has rejected an attempt to expand the volume while the resizer in the control plane
	// records states, and none has succeeded since.
	final bool
	// backoff is the current back-off and nextAttempt the time of the next attempt, while attempts fail.
	backoff     time.Duration
	nextAttempt time.Time
}

// expansionPlan is how a volume that is smaller than requested must be expanded on this node.
type expansionPlan struct {
	size resource.Quantity // the size to request from the driver
	// callDriver means that the driver is called; done means that nothing is left to do.
	callDriver, done bool
	// updateClaim means that the status of the claim must be updated. It need not be if another node has
	// already expanded the volume and updated the claim.
	updateClaim bool
	// recordStates means that each step is recorded in the status of the claim because the resizer in the
	// control plane uses allocatedResourceStatuses. Only then can an expansion be abandoned.
	recordStates bool
	// abandonOnFailure means that a rejection ends this expansion because the user has requested another
	// size.
	abandonOnFailure bool
}

// planExpansion decides how to expand the volume pv of the claim pvc on this node. refused means that the
// driver has rejected an earlier attempt.
//
// https://kubernetes.io/docs/concepts/storage/persistent-volumes/#recovering-from-failure-when-expanding-volumes
func planExpansion(pvc *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, refused bool) expansionPlan {
	state := pvc.Status.AllocatedResourceStatuses[v1.ResourceStorage]
	has := pvc.Status.Capacity[v1.ResourceStorage]
	if state == "" && pvc.Status.AllocatedResources == nil {
		size := pv.Spec.Capacity[v1.ResourceStorage]
		return expansionPlan{size: size, callDriver: true, updateClaim: has.Cmp(size) < 0}
	}
	p := expansionPlan{size: pvc.Status.AllocatedResources[v1.ResourceStorage], recordStates: true}
	wanted := pvc.Spec.Resources.Requests[v1.ResourceStorage]
	p.abandonOnFailure = refused && wanted.Cmp(p.size) != 0
	updated := state == "" && has.Cmp(p.size) >= 0
	p.updateClaim = !updated
	switch {
	case updated && slices.Contains(pvc.Spec.AccessModes, v1.ReadWriteMany) && !metav1.HasAnnotation(pvc.ObjectMeta, noNodeExpansion):
		p.callDriver = true
	case updated:
		p.done = true
	default:
		p.callDriver = state == v1.PersistentVolumeClaimNodeResizePending || state == v1.PersistentVolumeClaimNodeResizeInProgress
	}
	return p
}

// expandIfNeeded calls the driver d to expand a published volume that is smaller than requested. mounting means
// that the pod does not have the volume yet; an error then fails the setup of the volume. For a volume in use
// it returns nil: a failure is reported as an event and retried at expansion.nextAttempt. It does nothing for
// an inline volume and without an API server; a read-only volume is not expanded. The caller must hold the
// volume's lock.
//
// https://kubernetes.io/docs/concepts/storage/persistent-volumes/#csi-volume-expansion
func (p *Plugin) expandIfNeeded(ctx context.Context, d *driver, j *job, mounting bool) error {
	if j.claim == nil || p.cfg.Kube == nil {
		return nil
	}
	g := p.expansionOf(j.k)
	if !mounting && (g.busy || time.Now().Before(g.nextAttempt)) {
		return nil
	}
	has, should := j.claim.Status.Capacity[v1.ResourceStorage], j.pv.Spec.Capacity[v1.ResourceStorage]
	if !mounting && !g.size.IsZero() {
		has = g.size
	}
	if g.size.IsZero() {
		g.size = has
		p.setExpansion(j.k, g)
	}
	if has.IsZero() || should.Cmp(has) <= 0 {
		return nil
	}
	if j.readOnly {
		if mounting {
			p.recordExpansionEvent(j, j.claim, v1.EventTypeWarning, "FileSystemResizeFailed", fmt.Sprintf("MountVolume.NodeExpandVolume failed for volume %q requested read-only file system", j.spec))
		}
		return nil
	}
	err := p.attemptExpansion(ctx, d, j, &g)
	switch {
	case err == nil:
		g.backoff, g.nextAttempt = 0, time.Time{}
	case !mounting:
		p.event(j.pod, v1.EventTypeWarning, "VolumeResizeFailed", fmt.Sprintf("NodeExpandVolume.NodeExpandVolume failed for volume %q : %v", j.spec, err))
		g.backoff = min(max(2*g.backoff, retryFirst), retryMax)
		g.nextAttempt = time.Now().Add(g.backoff)
		err = nil
	}
	p.setExpansion(j.k, g)
	return err
}

// attemptExpansion makes one attempt to expand the volume, records the result in g and in the status of the
// claim, and emits an event after a success. It does not call the driver if the volume is expanded already, if
// the control plane has not finished its part, or if the driver cannot and need not expand volumes on the node.
func (p *Plugin) attemptExpansion(ctx context.Context, d *driver, j *job, g *expansion) error {
	// The claim may be outdated because attaching the volume takes time.
	pvc, err := p.cfg.Kube.CoreV1().PersistentVolumeClaims(j.claim.Namespace).Get(ctx, j.claim.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("mountVolume.NodeExpandVolume get PVC failed : %w", err)
	}
	todo := planExpansion(pvc, j.pv, g.final)
	switch {
	case todo.done:
		g.size = todo.size
		return nil
	case !todo.callDriver:
		return nil
	case !d.expands() && (!todo.recordStates || !todo.updateClaim):
		g.size = todo.size
		return nil
	}
	if todo.recordStates && todo.updateClaim {
		if pvc, err = p.markExpanding(ctx, pvc); err != nil {
			return err
		}
	}
	if rejected, err := p.expand(ctx, d, j, todo.size); err != nil {
		return p.handleExpansionError(ctx, pvc, todo, g, rejected, err)
	}
	p.recordExpansionEvent(j, pvc, v1.EventTypeNormal, "FileSystemResizeSuccessful", fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", j.spec, p.cfg.NodeName))
	g.final = false
	if todo.updateClaim {
		if err := p.markExpanded(ctx, pvc, todo.size); err != nil {
			return fmt.Errorf("mountVolume.NodeExpandVolume update pvc status failed: %w", err)
		}
	}
	g.size = todo.size
	return nil
}

// handleExpansionError handles the error err of an attempt at the expansion that todo describes. If the resizer in the
// control plane uses states and the driver has rejected the attempt, it records the error in g and in the status of the
// claim. After other errors the driver may still be working on the expansion, which keeps its state until the next attempt.
// It returns err, or nil if the driver cannot expand the volume while it is in use: the volume is then mounted without the
// expansion.
func (p *Plugin) handleExpansionError(ctx context.Context, pvc *v1.PersistentVolumeClaim, todo expansionPlan, g *expansion, rejected bool, err error) error {
	code := status.Code(cause(err))
	if todo.recordStates && rejected {
		g.final = true
		infeasible := code == codes.InvalidArgument || code == codes.OutOfRange || code == codes.NotFound
		if e := p.markFailed(ctx, pvc, infeasible || todo.abandonOnFailure, err); e != nil {
			p.cfg.Log.Warn("CSI driver could not expand volume and its PersistentVolumeClaim's status could not be updated; users see the error only in events, updating the status again when the expansion is retried", "persistentVolumeClaim", pvc.Namespace+"/"+pvc.Name, "err", e)
		}
	}
	if code == codes.FailedPrecondition {
		g.busy = true
		p.cfg.Log.Warn("CSI driver cannot expand volume while it is in use; the volume keeps its size, retrying when another pod mounts the volume", "persistentVolumeClaim", pvc.Namespace+"/"+pvc.Name, "err", err)
		return nil
	}
	return err
}

// expand calls the driver to expand a published volume to at least size. If it returns an error, rejected reports whether
// the driver does not support expansion or has rejected the call. It is false if the Secret of the call cannot be read, and
// if the driver may still be working, for example after a timeout.
func (p *Plugin) expand(ctx context.Context, d *driver, j *job, size resource.Quantity) (rejected bool, err error) {
	if !d.expands() {
		return true, fmt.Errorf("NodeExpand is not supported by the CSI driver %s", j.k.driver)
	}
	secrets, err := p.secret(ctx, j.expandRef)
	if err != nil {
		ref := j.expandRef
		return false, fmt.Errorf("expander.NodeExpand failed to get NodeExpandSecretRef %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	staging := ""
	if d.stages() {
		staging = globalMount(p.places.staged(j.k))
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err = d.node.NodeExpandVolume(call, &csipb.NodeExpandVolumeRequest{
		VolumeId: j.k.handle, VolumePath: j.target(), StagingTargetPath: staging, VolumeCapability: j.capability(d), Secrets: secrets,
		CapacityRange: &csipb.CapacityRange{RequiredBytes: size.Value()},
	})
	switch status.Code(err) {
	case codes.OK:
		return false, nil
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
		return true, fmt.Errorf("Expander.NodeExpand failed to expand the volume %w", err) //nolint:staticcheck // upstream's words, which users see
	}
	return isFinalError(err), fmt.Errorf("Expander.NodeExpand failed to expand the volume : %w", err) //nolint:staticcheck // upstream's words, which users see
}

// expansionOf returns the state of the expansion of the volume k; the zero value if there is none.
func (p *Plugin) expansionOf(k key) expansion {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.expansions[k]
}

// setExpansion stores the state of the expansion of the volume k.
func (p *Plugin) setExpansion(k key, g expansion) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expansions[k] = g
}

// expansionFailure returns the Failure, for the pod's events, of a mount that failed because the volume could
// not be expanded.
func (j *job) expansionFailure(err error) error {
	op := "MountVolume.Setup failed while expanding volume"
	if j.block {
		op = "MapVolume.MarkVolumeAsMounted failed while expanding volume"
	}
	return &volume.Failure{Operation: op, Volume: j.spec, Err: err}
}

// recordExpansionEvent emits the same event about the pod and about the claim pvc. kind is Normal or Warning.
// Without an event recorder it does nothing.
func (p *Plugin) recordExpansionEvent(j *job, pvc *v1.PersistentVolumeClaim, kind, reason, message string) {
	p.event(j.pod, kind, reason, message)
	if p.cfg.Events != nil {
		ref := &v1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: pvc.Namespace, Name: pvc.Name, UID: pvc.UID}
		p.cfg.Events.Event(ref, kind, reason, message)
	}
}

// event emits an event about the pod. kind is Normal or Warning. Without an event recorder it does nothing.
func (p *Plugin) event(pod *v1.Pod, kind, reason, message string) {
	if p.cfg.Events == nil {
		return
	}
	ref := &v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	p.cfg.Events.Event(ref, kind, reason, message)
}
