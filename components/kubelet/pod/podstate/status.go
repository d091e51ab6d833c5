package podstate

import (
	"slices"
	"sort"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/internal/pod/podutil"
)

// StatusInput is the input of Status. It is not modified. The result shares no memory with
// Pod.Status that is written later.
type StatusInput struct {
	Input
	// Recursive reports whether mounts below a read-only mount are also read-only. If it is nil,
	// they never are.
	Recursive func(m *v1.VolumeMount) bool
	// Last is the status known from the API, from which the new one is derived.
	Last *v1.PodStatus
	// RuntimeName is the prefix of container IDs, as in "hyperkube://…".
	RuntimeName string
	// HostIPs are the node's IP addresses, the primary one first.
	HostIPs []string
	// Terminating: the pod is being terminated. Stopped: nothing of it runs any more.
	Terminating, Stopped bool
	// Reason and Message are why the kubelet has failed the pod (Evicted, DeadlineExceeded, an
	// admission failure). Otherwise they are empty.
	Reason, Message string
	// Rejected: the pod was not admitted, so that nothing of it ever ran.
	Rejected bool
	// Devices returns the health of a container's devices. It may be nil.
	Devices func(container string) []v1.ResourceStatus
	// Conditions are additional conditions, such as DisruptionTarget.
	Conditions []v1.PodCondition
	QOS        v1.PodQOSClass
	// Actuated are the actual resources of running containers, by name, that differ from the spec
	// because of an unfinished resize.
	Actuated map[string]v1.ResourceRequirements
	// Pending: the resize is pending, so that the allocated resources equal those of Actuated.
	Pending bool
	// Resources are the actual pod-level resources, and Allocated are the allocated pod-level
	// requests. They become part of the status.
	Resources *v1.ResourceRequirements
	Allocated v1.ResourceList
}

// Status computes the status of a pod that the kubelet reports to the API. Fields that other components own
// are those of the last status. A terminal phase never changes, and is only reached when nothing of the pod
// runs.
func Status(in StatusInput) v1.PodStatus {
	pod, last := in.Pod, in.Last
	s := v1.PodStatus{
		ObservedGeneration: pod.Generation,
		QOSClass:           in.QOS,
		StartTime:          last.StartTime,
		Resize:             "",
		Reason:             in.Reason,
		Message:            in.Message,
		// Other components own these fields.
		NominatedNodeName:                    last.NominatedNodeName,
		ResourceClaimStatuses:                last.ResourceClaimStatuses,
		ExtendedResourceClaimStatus:          last.ExtendedResourceClaimStatus,
		NodeAllocatableResourceClaimStatuses: last.NodeAllocatableResourceClaimStatuses,
	}
	if s.StartTime == nil {
		now := metav1.NewTime(in.Now.Truncate(time.Second))
		s.StartTime = &now
	}
	if in.Reason == "" && terminal(last.Phase) {
		s.Reason, s.Message = last.Reason, last.Message
	}
	in.addresses(&s)

	if in.rejected() {
		s.Phase = v1.PodFailed
		if terminal(last.Phase) {
			s.Phase = last.Phase
		}
		in.conditions(&s)
		return s
	}
	s.Resources, s.AllocatedResources = in.Resources, in.Allocated
	hasInit := len(pod.Spec.InitContainers) > 0
	for i := range pod.Spec.InitContainers {
		s.InitContainerStatuses = append(s.InitContainerStatuses, in.container(&pod.Spec.InitContainers[i], Init, hasInit))
	}
	for i := range pod.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, in.container(&pod.Spec.Containers[i], App, hasInit))
	}
	for i := range pod.Spec.EphemeralContainers {
		c := v1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		s.EphemeralContainerStatuses = append(s.EphemeralContainerStatuses, in.container(&c, Ephemeral, hasInit))
	}
	begun := slices.ContainsFunc(s.ContainerStatuses, hasRun)
	if in.Stopped {
		in.terminateContainers(&s)
	}
	cutMessages(&s)

	switch {
	case terminal(last.Phase):
		s.Phase = last.Phase
	case in.Reason != "":
		s.Phase = v1.PodFailed
	default:
		s.Phase = phase(pod, &s, in.Stopped, in.appCreated())
		if in.Stopped && !terminal(s.Phase) {
			s.Phase = v1.PodFailed
		}
		// The phase is not terminal while a container may be running.
		if terminal(s.Phase) && !in.Stopped {
			if last.Phase == "" || last.Phase == v1.PodPending && !begun {
				s.Phase = v1.PodPending
			} else {
				s.Phase = v1.PodRunning
			}
		}
	}
	if terminal(s.Phase) && !in.Stopped && !terminal(last.Phase) {
		// The kubelet is terminating the pod, but it has not stopped yet.
		s.Phase = v1.PodRunning
		if last.Phase == v1.PodPending {
			s.Phase = v1.PodPending
		}
		s.Reason, s.Message = last.Reason, last.Message
	}
	if in.Reason == "" && s.Phase == last.Phase {
		// Reason and message describe the phase, regardless of which component has set them.
		s.Reason, s.Message = last.Reason, last.Message
	}
	in.conditions(&s)
	return s
}

// rejected reports whether the pod was rejected by this or an earlier kubelet, so that its status has no
// containers.
func (in *StatusInput) rejected() bool {
	return in.Rejected || terminal(in.Last.Phase) && len(in.Observed.Containers) == 0 &&
		len(in.Last.ContainerStatuses) == 0 && len(in.Last.InitContainerStatuses) == 0
}

// terminal reports whether the phase is Succeeded or Failed.
func terminal(p v1.PodPhase) bool { return p == v1.PodSucceeded || p == v1.PodFailed }

// addresses sets the host IPs and the pod IPs in s. The first pod IP has the family of the node's primary
// address. A stopped pod keeps its last addresses.
func (in *StatusInput) addresses(s *v1.PodStatus) {
	if len(in.HostIPs) > 0 {
		s.HostIP = in.HostIPs[0]
		for _, ip := range in.HostIPs {
			s.HostIPs = append(s.HostIPs, v1.HostIP{IP: ip})
		}
	}
	var ips []string
	switch {
	case in.Pod.Spec.HostNetwork:
		ips = in.HostIPs
	case in.Observed.Sandbox() != nil:
		ips = slices.Clone(in.Observed.Sandbox().IPs)
		// The primary family is that of the node's primary address.
		if len(in.HostIPs) > 0 {
			v6 := strings.Contains(in.HostIPs[0], ":")
			sort.SliceStable(ips, func(i, j int) bool {
				return strings.Contains(ips[i], ":") == v6 && strings.Contains(ips[j], ":") != v6
			})
		}
	default:
		// A stopped pod keeps its last addresses.
		for _, ip := range in.Last.PodIPs {
			ips = append(ips, ip.IP)
		}
		if len(in.Observed.Sandboxes) > 0 && len(in.Observed.Sandboxes[0].IPs) > 0 {
			ips = in.Observed.Sandboxes[0].IPs
		}
	}
	for _, ip := range ips {
		s.PodIPs = append(s.PodIPs, v1.PodIP{IP: ip})
	}
	if len(ips) > 0 {
		s.PodIP = ips[0]
	}
}

// unknownStatus is the reason of a container that has terminated with an unknown result.
const unknownStatus = "ContainerStatusUnknown"

// container computes the status of one container from its latest attempt in the runtime, or from its previous
// status if the runtime does not have it. hasInit is true if the pod has init containers: a waiting container then
// has the reason PodInitializing instead of ContainerCreating.
func (in *StatusInput) container(c *v1.Container, kind Kind, hasInit bool) v1.ContainerStatus {
	old := StatusOf(in.Last, c.Name)
	latest := in.Observed.Latest(c.Name)
	waiting := &v1.ContainerStateWaiting{Reason: "ContainerCreating"}
	if hasInit {
		waiting.Reason = "PodInitializing"
	}
	var s v1.ContainerStatus
	past := false // it has terminated with an unknown result
	switch {
	case latest != nil:
		s = in.observed(c, latest, old, waiting)
	case old != nil && in.Slots[c.Name].Next > 0:
		s = removedStatus(c, old, in.Slots[c.Name].Next)
	default:
		s = in.absent(c, old, waiting)
		if past = kind == Init && !podutil.Sidecar(c) && s.State.Waiting != nil && in.appExists(); past {
			// No result is known, for example for a static pod.
			s.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
				Reason: "Completed", Message: "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally",
			}}
		}
	}

	// A container that is about to be restarted is waiting, with the slot's reason.
	slot := in.Slots[c.Name]
	if slot.Waiting != nil && !past && !in.Terminating && in.Pod.DeletionTimestamp == nil && in.willStart(c, kind, latest) {
		if s.State.Terminated != nil {
			s.LastTerminationState = v1.ContainerState{Terminated: s.State.Terminated}
		}
		s.State = v1.ContainerState{Waiting: slot.Waiting.DeepCopy()}
	}

	in.readiness(c, kind, latest, &s)
	if in.Devices != nil {
		s.AllocatedResourcesStatus = in.Devices(c.Name)
	}
	if latest != nil {
		in.resources(c, &s, latest.State == Running)
	}
	if latest != nil || s.VolumeMounts == nil {
		s.VolumeMounts = in.volumeMounts(c)
	}
	return s
}

// appExists reports whether the runtime has an app container of the pod in a known state. The init containers
// must have completed then.
func (in *StatusInput) appExists() bool {
	for i := range in.Pod.Spec.Containers {
		if c := in.Observed.Latest(in.Pod.Spec.Containers[i].Name); c != nil && c.State != Unknown {
			return true
		}
	}
	return false
}

// absent returns the status of a container that does not exist in the runtime. old is its previous status, or
// nil. waiting is the state of a container that has not run. A container that was running is reported as
// lost, with an unknown result.
func (in *StatusInput) absent(c *v1.Container, old *v1.ContainerStatus, waiting *v1.ContainerStateWaiting) v1.ContainerStatus {
	s := v1.ContainerStatus{Name: c.Name, Image: c.Image}
	s.State.Waiting = waiting
	switch {
	case old == nil:
	case old.State.Terminated != nil:
		s = *old.DeepCopy()
	case old.State.Running != nil:
		// It was running and has disappeared.
		s.RestartCount = old.RestartCount
		s.LastTerminationState.Terminated = &v1.ContainerStateTerminated{
			Reason:   unknownStatus,
			Message:  "The container could not be located when the pod was deleted.  The container used to be Running",
			ExitCode: 137,
		}
		if in.Pod.DeletionTimestamp == nil {
			s.RestartCount++
		}
	default:
		s.RestartCount = old.RestartCount
		s.LastTerminationState = *old.LastTerminationState.DeepCopy()
	}
	return s
}

// observed returns the status of a container whose newest attempt in the runtime is latest. old is its
// previous status, or nil. waiting is the state of a container that was created but not started.
func (in *StatusInput) observed(c *v1.Container, latest *Container, old *v1.ContainerStatus, waiting *v1.ContainerStateWaiting) v1.ContainerStatus {
	s := v1.ContainerStatus{
		Name: c.Name, Image: c.Image, ImageID: latest.ImageID,
		ContainerID: in.RuntimeName + "://" + latest.ID, RestartCount: int32(latest.Attempt),
	}
	if latest.Image != "" && !strings.HasPrefix(latest.Image, "sha256:") {
		s.Image = latest.Image
	}
	switch latest.State {
	case Running:
		s.State.Running = &v1.ContainerStateRunning{StartedAt: apiTime(latest.StartedAt)}
	case Exited:
		s.State.Terminated = in.terminated(latest)
	case Created:
		s.State.Waiting = waiting
	default:
		if old != nil && old.State.Running != nil {
			s.State.Terminated = &v1.ContainerStateTerminated{
				Reason: unknownStatus, Message: "The container could not be located when the pod was terminated", ExitCode: 137,
			}
			s.RestartCount = old.RestartCount + 1
		} else {
			s.State.Waiting = waiting
		}
	}
	if prev := in.Observed.Previous(c.Name); prev != nil && prev.State == Exited {
		s.LastTerminationState.Terminated = in.terminated(prev)
	} else if old != nil && old.RestartCount == s.RestartCount {
		s.LastTerminationState = *old.LastTerminationState.DeepCopy()
	} else if old != nil && old.State.Terminated != nil && old.ContainerID != s.ContainerID {
		s.LastTerminationState = *old.State.DeepCopy()
	} else if old != nil && old.RestartCount < s.RestartCount && old.State.Running != nil && canRestartAll(in.Pod) {
		// It was removed and restarted before the removal was reported.
		s.LastTerminationState.Terminated = removedState()
	}
	if latest.User != nil {
		s.User = &v1.ContainerUser{Linux: &v1.LinuxContainerUser{
			UID: latest.User.UID, GID: latest.User.GID, SupplementalGroups: slices.Clone(latest.User.Groups),
		}}
	}
	return s
}

// resources sets the actual and the allocated resources of a container. For a container that is not
// running they are the same.
func (in *StatusInput) resources(c *v1.Container, s *v1.ContainerStatus, running bool) {
	given, actual := c.Resources, c.Resources
	if r, ok := in.Actuated[c.Name]; ok {
		actual = r
		if in.Pending {
			given = r
		}
	}
	if !running {
		actual = given
	}
	s.AllocatedResources = given.Requests.DeepCopy()
	s.Resources = &v1.ResourceRequirements{Limits: actual.Limits.DeepCopy(), Requests: actual.Requests.DeepCopy()}
}

// volumeMounts returns the status of the container's volume mounts. Read-only mounts have the effective
// recursive read-only mode.
func (in *StatusInput) volumeMounts(c *v1.Container) []v1.VolumeMountStatus {
	var out []v1.VolumeMountStatus
	for _, m := range c.VolumeMounts {
		vm := v1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			mode := v1.RecursiveReadOnlyDisabled
			if in.Recursive != nil && in.Recursive(&m) {
				mode = v1.RecursiveReadOnlyEnabled
			}
			vm.RecursiveReadOnly = &mode
		}
		out = append(out, vm)
	}
	return out
}

// willStart reports whether the container will be started, again or for the first time. latest is its newest
// attempt, or nil. It returns false for an init container or sidecar that has exited with code 0, even if a
// sidecar is restarted then, because such a container is reported as terminated.
func (in *StatusInput) willStart(c *v1.Container, kind Kind, latest *Container) bool {
	if latest == nil || latest.State == Unknown || latest.State == Created {
		return true
	}
	if latest.State == Running || kind == Ephemeral {
		return false
	}
	if kind == Init && latest.ExitCode == 0 {
		// A completed container is reported as terminated, even a sidecar that will be restarted.
		return false
	}
	return in.Slots[c.Name].ForceRestart == latest.ID || shouldRestart(in.Pod, c, latest.ExitCode)
}

// terminated returns the API's terminated state of the exited container c. The reason defaults to Completed
// or Error.
func (in *StatusInput) terminated(c *Container) *v1.ContainerStateTerminated {
	reason := c.Reason
	if reason == "" {
		reason = "Error"
		if c.ExitCode == 0 {
			reason = "Completed"
		}
	}
	return &v1.ContainerStateTerminated{
		ExitCode: c.ExitCode, Reason: reason, Message: c.Message,
		StartedAt: apiTime(c.StartedAt), FinishedAt: apiTime(c.FinishedAt),
		ContainerID: in.RuntimeName + "://" + c.ID,
	}
}

// apiTime truncates t to seconds, as the API does, so that computed and received statuses can be compared.
func apiTime(t time.Time) metav1.Time {
	if t.IsZero() {
		// Some runtimes report a zero time; do not report the year one.
		return metav1.Time{}
	}
	return metav1.NewTime(t.Truncate(time.Second))
}

// readiness sets in s whether the container has started and is ready, from its postStart hook and probe
// results. An init container is ready when it has completed successfully. Ephemeral containers have neither
// field.
func (in *StatusInput) readiness(c *v1.Container, kind Kind, latest *Container, s *v1.ContainerStatus) {
	if kind == Ephemeral {
		return
	}
	running := s.State.Running != nil && latest != nil
	started := false
	ready := false
	if running {
		h := in.Health[latest.ID]
		started = in.started(latest)
		ready = started && (h.Readiness == NoProbe || h.Readiness == Success)
	}
	if kind == Init && !podutil.Sidecar(c) {
		ready = s.State.Terminated != nil && s.State.Terminated.ExitCode == 0
	}
	s.Started, s.Ready = &started, ready
}
