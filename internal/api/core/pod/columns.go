package pod

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/internal/api"
	"hyperkube/internal/pod/podutil"
)

func columns() []metav1.TableColumnDefinition {
	spec, status := corev1.PodSpec{}.SwaggerDoc(), corev1.PodStatus{}.SwaggerDoc()
	return []metav1.TableColumnDefinition{
		api.NameColumn,
		{Name: "Ready", Type: "string", Description: "The aggregate readiness state of this pod for accepting traffic."},
		{Name: "Status", Type: "string", Description: "The aggregate status of the containers in this pod."},
		{Name: "Restarts", Type: "string", Description: "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted."},
		api.AgeColumn,
		{Name: "IP", Type: "string", Priority: 1, Description: status["podIP"]},
		{Name: "Node", Type: "string", Priority: 1, Description: spec["nodeName"]},
		{Name: "Nominated Node", Type: "string", Priority: 1, Description: status["nominatedNodeName"]},
		{Name: "Readiness Gates", Type: "string", Priority: 1, Description: spec["readinessGates"]},
	}
}

func row(p *corev1.Pod) []any {
	s := summarize(p)
	restarts := strconv.Itoa(s.restarts)
	if s.restarts != 0 && !s.lastRestart.IsZero() {
		restarts = fmt.Sprintf("%d (%s ago)", s.restarts, api.Age(s.lastRestart))
	}
	ip := ""
	if len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	return []any{
		p.Name, fmt.Sprintf("%d/%d", s.ready, s.containers), s.status, restarts, api.Age(p.CreationTimestamp),
		orNone(ip), orNone(p.Spec.NodeName), orNone(p.Status.NominatedNodeName), readinessGates(p),
	}
}

// rowConditions returns the condition Completed for the table row of a pod in a terminal phase,
// with which clients can hide the row, and nil for other pods.
func rowConditions(p *corev1.Pod) []metav1.TableRowCondition {
	ended := metav1.TableRowCondition{Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Reason: string(p.Status.Phase)}
	switch p.Status.Phase {
	case corev1.PodSucceeded:
		ended.Message = "The pod has completed successfully."
	case corev1.PodFailed:
		ended.Message = "The pod failed."
	default:
		return nil
	}
	return []metav1.TableRowCondition{ended}
}

// orNone returns s, or "<none>" if it is empty.
func orNone(s string) string {
	if s == "" {
		return "<none>"
	}
	return s
}

// readinessGates returns the table cell with the numbers of satisfied and of all readiness gates, or "<none>".
func readinessGates(p *corev1.Pod) string {
	if len(p.Spec.ReadinessGates) == 0 {
		return "<none>"
	}
	met := 0
	for _, gate := range p.Spec.ReadinessGates {
		if isTrue(p, gate.ConditionType) {
			met++
		}
	}
	return fmt.Sprintf("%d/%d", met, len(p.Spec.ReadinessGates))
}

// isTrue reports whether the pod's first condition of type t is true. It returns false if there is
// none.
func isTrue(p *corev1.Pod, t corev1.PodConditionType) bool {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == t {
			return p.Status.Conditions[i].Status == corev1.ConditionTrue
		}
	}
	return false
}

// summary contains what kubectl's table shows for a pod: the numbers of ready and of all
// containers, the status, and the restarts.
type summary struct {
	ready, containers int
	status            string
	restarts          int
	lastRestart       metav1.Time
}

// addRestarts adds the restarts of one container to s, and updates the time of the pod's last
// restart.
func (s *summary) addRestarts(c *corev1.ContainerStatus) {
	s.restarts += int(c.RestartCount)
	if t := c.LastTerminationState.Terminated; t != nil && s.lastRestart.Before(&t.FinishedAt) {
		s.lastRestart = t.FinishedAt
	}
}

// summarize computes the summary of a pod as kubectl shows it: the status is the pod's phase or reason, unless
// containers, init containers, scheduling gates or a deletion determine it.
func summarize(p *corev1.Pod) summary {
	s := summary{containers: len(p.Spec.Containers), status: string(p.Status.Phase)}
	if p.Status.Reason != "" {
		s.status = p.Status.Reason
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonSchedulingGated {
			s.status = corev1.PodReasonSchedulingGated
		}
	}
	for i := range p.Spec.InitContainers {
		if podutil.Sidecar(&p.Spec.InitContainers[i]) {
			s.containers++
		}
	}
	sidecars, initializing := s.initContainers(p)
	if !initializing || isTrue(p, corev1.PodInitialized) {
		// When the pod is running, init containers except sidecars are irrelevant.
		s.restarts, s.lastRestart = sidecars.restarts, sidecars.lastRestart
		s.mainContainers(p)
	}
	switch {
	case p.DeletionTimestamp == nil:
	case p.Status.Reason == "NodeLost":
		s.status = "Unknown"
	case !podutil.Terminal(p):
		s.status = "Terminating"
	}
	return s
}

// initContainers adds the init containers up to the first one that has not completed to s, and sets
// the status from that one. It reports whether there is such a container, and returns a summary
// with the restarts of the sidecars only.
func (s *summary) initContainers(p *corev1.Pod) (sidecars summary, initializing bool) {
	for i := range p.Status.InitContainerStatuses {
		c := &p.Status.InitContainerStatuses[i]
		sidecar := false
		for j := range p.Spec.InitContainers {
			if p.Spec.InitContainers[j].Name == c.Name {
				sidecar = podutil.Sidecar(&p.Spec.InitContainers[j])
			}
		}
		s.addRestarts(c)
		if sidecar {
			sidecars.addRestarts(c)
		}
		ended, waiting := c.State.Terminated, c.State.Waiting
		switch {
		case ended != nil && ended.ExitCode == 0:
			continue
		case sidecar && c.Started != nil && *c.Started:
			if c.Ready {
				s.ready++
			}
			continue
		case ended != nil:
			s.status = "Init:" + terminationReason(ended)
		case waiting != nil && waiting.Reason != "" && waiting.Reason != "PodInitializing":
			s.status = "Init:" + waiting.Reason
		default:
			s.status = fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers))
		}
		return sidecars, true
	}
	return sidecars, false
}

// terminationReason returns the status to show for a terminated container: the reason that the
// runtime reports, or else the signal or exit code.
func terminationReason(t *corev1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	}
	return fmt.Sprintf("ExitCode:%d", t.ExitCode)
}

// mainContainers adds the regular containers to s. The status becomes that of the first container
// that is waiting with a reason or has terminated. If containers have completed while others run,
// it is Running or, if the pod is not ready, NotReady.
func (s *summary) mainContainers(p *corev1.Pod) {
	running := false
	for i := len(p.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := &p.Status.ContainerStatuses[i]
		s.addRestarts(c)
		switch state := &c.State; {
		case state.Waiting != nil && state.Waiting.Reason != "":
			s.status = state.Waiting.Reason
		case state.Terminated != nil:
			s.status = terminationReason(state.Terminated)
		case c.Ready && state.Running != nil:
			running = true
			s.ready++
		}
	}
	if s.status == "Completed" && running {
		s.status = "NotReady"
		if podutil.Ready(p) {
			s.status = "Running"
		}
	}
}
