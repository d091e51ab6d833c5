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

	"hyperkube/components/kubelet/volume"
)

// noNodeExpansion is on claims whose volumes need not be grown on other nodes
// once they have been grown on one.
const noNodeExpansion = "volume.kubernetes.io/node-expansion-not-required"

// growth is what this kubelet knows of the size of a volume that pods of its
// node have mounted.
type growth struct {
	// size is what the volume has here; zero before a pod has mounted it.
	size resource.Quantity
	// busy: the driver does not grow volumes that are in use. It is asked again
	// when another pod mounts the volume.
	busy bool
	// final: the driver has refused for good.
	final bool
	// wait was the last pause between two attempts, and next is when the next
	// one is due, while attempts fail.
	wait time.Duration
	next time.Time
}

// plan is what is to be done to a volume that is smaller than it should be.
type plan struct {
	size resource.Quantity // what the driver is asked for
	// ask: the driver is called; done: there is nothing left to do.
	ask, done bool
	// write: the claim tells how far it is; it does not where another node has
	// grown the volume, and the claim tells so, already.
	write bool
	// states: the claim tells each step, for who grew the volume in the control
	// plane knows of steps. Only such a growth can be given up.
	states bool
	// giveUp: a refusal ends this attempt for the user has asked for another
	// size.
	giveUp bool
}

// planGrowth decides what is done to a volume. refused: the driver has refused
// for good before.
// https://kubernetes.io/docs/concepts/storage/persistent-volumes/#recovering-from-failure-when-expanding-volumes
func planGrowth(pvc *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, refused bool) plan {
	state := pvc.Status.AllocatedResourceStatuses[v1.ResourceStorage]
	has := pvc.Status.Capacity[v1.ResourceStorage]
	if state == "" && pvc.Status.AllocatedResources == nil {
		size := pv.Spec.Capacity[v1.ResourceStorage]
		return plan{size: size, ask: true, write: has.Cmp(size) < 0}
	}
	p := plan{size: pvc.Status.AllocatedResources[v1.ResourceStorage], states: true}
	wanted := pvc.Spec.Resources.Requests[v1.ResourceStorage]
	p.giveUp = refused && wanted.Cmp(p.size) != 0
	told := state == "" && has.Cmp(p.size) >= 0
	p.write = !told
	switch {
	case told && slices.Contains(pvc.Spec.AccessModes, v1.ReadWriteMany) && !metav1.HasAnnotation(pvc.ObjectMeta, noNodeExpansion):
		p.ask = true
	case told:
		p.done = true
	default:
		p.ask = state == v1.PersistentVolumeClaimNodeResizePending || state == v1.PersistentVolumeClaimNodeResizeInProgress
	}
	return p
}

// grow has the driver grow a published volume that is smaller here than it
// should be. mounting: the pod does not have the volume yet, and does not get it
// unless grow succeeds; growing what pods use is tried again when growth.next
// says, and its failures are told as events. The caller holds the volume's lock.
// https://kubernetes.io/docs/concepts/storage/persistent-volumes/#csi-volume-expansion
func (p *Plugin) grow(ctx context.Context, d *driver, j *job, mounting bool) error {
	if j.claim == nil || p.cfg.Kube == nil {
		return nil
	}
	g := p.growth(j.k)
	if !mounting && (g.busy || time.Now().Before(g.next)) {
		return nil
	}
	has, should := j.claim.Status.Capacity[v1.ResourceStorage], j.pv.Spec.Capacity[v1.ResourceStorage]
	if !mounting && !g.size.IsZero() {
		has = g.size
	}
	if g.size.IsZero() {
		g.size = has
		p.keepGrowth(j.k, g)
	}
	if has.IsZero() || should.Cmp(has) <= 0 {
		return nil
	}
	if j.readOnly {
		if mounting {
			p.tellGrowth(j, j.claim, v1.EventTypeWarning, "FileSystemResizeFailed", fmt.Sprintf("MountVolume.NodeExpandVolume failed for volume %q requested read-only file system", j.spec))
		}
		return nil
	}
	err := p.growNow(ctx, d, j, &g)
	switch {
	case err == nil:
		g.wait, g.next = 0, time.Time{}
	case !mounting:
		p.event(j.pod, v1.EventTypeWarning, "VolumeResizeFailed", fmt.Sprintf("NodeExpandVolume.NodeExpandVolume failed for volume %q : %v", j.spec, err))
		g.wait = min(max(2*g.wait, retryFirst), retryMost)
		g.next = time.Now().Add(g.wait)
		err = nil
	}
	p.keepGrowth(j.k, g)
	return err
}

// growNow makes one attempt, and says in g how it ended.
func (p *Plugin) growNow(ctx context.Context, d *driver, j *job, g *growth) error {
	// It may be long ago that the claim was read: the volume had to be attached.
	pvc, err := p.cfg.Kube.CoreV1().PersistentVolumeClaims(j.claim.Namespace).Get(ctx, j.claim.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("mountVolume.NodeExpandVolume get PVC failed : %w", err)
	}
	todo := planGrowth(pvc, j.pv, g.final)
	switch {
	case todo.done:
		g.size = todo.size
		return nil
	case !todo.ask:
		return nil
	case !d.expands() && (!todo.states || !todo.write):
		g.size = todo.size
		return nil
	}
	if todo.states && todo.write {
		if pvc, err = p.markGrowing(ctx, pvc); err != nil {
			return err
		}
	}
	if err = p.expand(ctx, d, j, todo.size); err != nil {
		return p.refused(ctx, pvc, todo, g, err)
	}
	p.tellGrowth(j, pvc, v1.EventTypeNormal, "FileSystemResizeSuccessful", fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", j.spec, p.cfg.NodeName))
	g.final = false
	if todo.write {
		if err := p.markGrown(ctx, pvc, todo.size); err != nil {
			return fmt.Errorf("mountVolume.NodeExpandVolume update pvc status failed: %w", err)
		}
	}
	g.size = todo.size
	return nil
}

// refused says what came of a call that failed. A volume that cannot grow while
// it is in use does not fail the mount.
func (p *Plugin) refused(ctx context.Context, pvc *v1.PersistentVolumeClaim, todo plan, g *growth, err error) error {
	code := status.Code(cause(err))
	if todo.states {
		g.final = true
		infeasible := code == codes.InvalidArgument || code == codes.OutOfRange || code == codes.NotFound
		if e := p.markFailed(ctx, pvc, infeasible || todo.giveUp, err); e != nil {
			p.cfg.Log.Warn("telling that a volume could not be grown failed", "claim", pvc.Namespace+"/"+pvc.Name, "error", e)
		}
	}
	if code == codes.FailedPrecondition {
		g.busy = true
		p.cfg.Log.Warn("a volume is not grown while it is in use", "claim", pvc.Namespace+"/"+pvc.Name, "error", err)
		return nil
	}
	return err
}

// expand has the driver grow a volume to size at least.
func (p *Plugin) expand(ctx context.Context, d *driver, j *job, size resource.Quantity) error {
	if !d.expands() {
		return fmt.Errorf("NodeExpand is not supported by the CSI driver %s", j.k.driver)
	}
	secrets, err := p.secret(ctx, j.expandRef)
	if err != nil {
		ref := j.expandRef
		return fmt.Errorf("expander.NodeExpand failed to get NodeExpandSecretRef %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	staging := ""
	if d.stages() {
		staging = globalMount(p.places.staged(j.k))
	}
	call, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	_, err = d.node.NodeExpandVolume(call, &csipb.NodeExpandVolumeRequest{
		VolumeId: j.k.handle, VolumePath: j.target(), StagingTargetPath: staging, VolumeCapability: j.capability(d), Secrets: secrets,
		CapacityRange: &csipb.CapacityRange{RequiredBytes: size.Value()},
	})
	switch status.Code(err) {
	case codes.OK:
		return nil
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
		return fmt.Errorf("Expander.NodeExpand failed to expand the volume %w", err) //nolint:staticcheck // upstream's words, which users see
	}
	return fmt.Errorf("Expander.NodeExpand failed to expand the volume : %w", err) //nolint:staticcheck // upstream's words, which users see
}

func (p *Plugin) growth(k key) growth {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.growths[k]
}

func (p *Plugin) keepGrowth(k key, g growth) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.growths[k] = g
}

// growthFailure is why a pod does not get a volume that could not be grown.
func (j *job) growthFailure(err error) error {
	op := "MountVolume.Setup failed while expanding volume"
	if j.block {
		op = "MapVolume.MarkVolumeAsMounted failed while expanding volume"
	}
	return &volume.Failure{Operation: op, Volume: j.spec, Err: err}
}

// tellGrowth tells the pod and the claim of an event.
func (p *Plugin) tellGrowth(j *job, pvc *v1.PersistentVolumeClaim, kind, reason, message string) {
	p.event(j.pod, kind, reason, message)
	if p.cfg.Events != nil {
		ref := &v1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: pvc.Namespace, Name: pvc.Name, UID: pvc.UID}
		p.cfg.Events.Event(ref, kind, reason, message)
	}
}

func (p *Plugin) event(pod *v1.Pod, kind, reason, message string) {
	if p.cfg.Events == nil {
		return
	}
	ref := &v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	p.cfg.Events.Event(ref, kind, reason, message)
}
