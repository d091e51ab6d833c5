package stream

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// quantities are amounts of resources by name.
type quantities map[string]resource.Quantity

// cpu returns the amount of CPU in thousandths of a core, and memory the amount of memory in bytes.
func (q quantities) cpu() int64    { v := q["cpu"]; return v.MilliValue() }
func (q quantities) memory() int64 { v := q["memory"]; return v.Value() }

// podState is the state of a pod as the overview colours it.
type podState string

const (
	podRunning     podState = "running"
	podPending     podState = "pending"
	podSucceeded   podState = "done"
	podFailed      podState = "failed"
	podUnready     podState = "unready"
	podTerminating podState = "terminating"
)

// podTile is what the overview needs to know about a pod.
type podTile struct {
	Name      string   `json:"name"`
	Namespace string   `json:"ns"`
	Node      string   `json:"node,omitempty"`
	State     podState `json:"state"`
	// Reason and Message are why the pod is not running, such as CrashLoopBackOff.
	Reason   string `json:"reason,omitempty"`
	Message  string `json:"message,omitempty"`
	Restarts int    `json:"restarts,omitempty"`
	// CPU and Memory are the requests of the pod, in thousandths of a core and in bytes.
	CPU    int64  `json:"cpu,omitempty"`
	Memory int64  `json:"mem,omitempty"`
	Since  string `json:"since,omitempty"`
}

// pod is the part of a Pod that its tile is made of. Decoding whole Pods takes several times as long.
type pod struct {
	Metadata struct {
		identity
		Created string `json:"creationTimestamp"`
		Deleted string `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec struct {
		Node       string      `json:"nodeName"`
		Containers []container `json:"containers"`
		Init       []container `json:"initContainers"`
	} `json:"spec"`
	Status struct {
		Phase      corev1.PodPhase   `json:"phase"`
		Reason     string            `json:"reason"`
		Message    string            `json:"message"`
		Conditions []condition       `json:"conditions"`
		Containers []containerStatus `json:"containerStatuses"`
		Init       []containerStatus `json:"initContainerStatuses"`
	} `json:"status"`
}

type container struct {
	RestartPolicy string `json:"restartPolicy"`
	Resources     struct {
		Requests quantities `json:"requests"`
	} `json:"resources"`
}

type condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

type containerStatus struct {
	Name     string `json:"name"`
	Ready    bool   `json:"ready"`
	Restarts int    `json:"restartCount"`
	State    struct {
		Waiting    *stateReason `json:"waiting"`
		Terminated *stateReason `json:"terminated"`
	} `json:"state"`
	Last struct {
		Terminated *stateReason `json:"terminated"`
	} `json:"lastState"`
}

type stateReason struct {
	Reason   string `json:"reason"`
	Message  string `json:"message"`
	ExitCode int    `json:"exitCode"`
}

// podSummary converts a Pod to its tile.
func podSummary(raw json.RawMessage) (any, error) {
	var p pod
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, err
	}
	tile := podTile{Name: p.Metadata.Name, Namespace: p.Metadata.Namespace, Node: p.Spec.Node, Since: p.Metadata.Created}
	tile.CPU, tile.Memory = p.requests()
	for _, c := range p.Status.Containers {
		tile.Restarts += c.Restarts
	}
	tile.State, tile.Reason, tile.Message = p.state()
	return tile, nil
}

// requests returns the requests of the pod: the sum of its containers and sidecars, or the largest init container.
func (p *pod) requests() (cpu, memory int64) {
	for _, c := range p.Spec.Containers {
		cpu += c.Resources.Requests.cpu()
		memory += c.Resources.Requests.memory()
	}
	var initCPU, initMemory int64
	for _, c := range p.Spec.Init {
		if c.RestartPolicy == string(corev1.ContainerRestartPolicyAlways) {
			cpu += c.Resources.Requests.cpu()
			memory += c.Resources.Requests.memory()
		} else {
			initCPU = max(initCPU, c.Resources.Requests.cpu())
			initMemory = max(initMemory, c.Resources.Requests.memory())
		}
	}
	return max(cpu, initCPU), max(memory, initMemory)
}

// state returns the state of the pod and, if it is neither running nor done, the reason.
func (p *pod) state() (state podState, reason, message string) {
	s := &p.Status
	switch {
	case p.Metadata.Deleted != "":
		return podTerminating, "Terminating", ""
	case s.Phase == corev1.PodSucceeded:
		return podSucceeded, "", ""
	case s.Phase == corev1.PodFailed:
		reason, message = p.problem()
		if s.Reason != "" {
			reason, message = s.Reason, s.Message
		}
		return podFailed, reason, message
	}
	reason, message = p.problem()
	switch reason {
	case "CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "CreateContainerConfigError", "CreateContainerError",
		"InvalidImageName", "RunContainerError", "ErrImageNeverPull":
		return podFailed, reason, message
	}
	if s.Phase == corev1.PodPending {
		for _, c := range s.Conditions {
			if c.Type == string(corev1.PodScheduled) && c.Status == string(corev1.ConditionFalse) {
				return podPending, c.Reason, c.Message
			}
		}
		return podPending, reason, message
	}
	for _, c := range s.Conditions {
		if c.Type == string(corev1.PodReady) && c.Status != string(corev1.ConditionTrue) {
			return podUnready, "NotReady", c.Message
		}
	}
	return podRunning, "", ""
}

// problem returns the reason and message of the first container that is waiting or has failed.
func (p *pod) problem() (reason, message string) {
	for _, list := range [][]containerStatus{p.Status.Init, p.Status.Containers} {
		for _, c := range list {
			if w := c.State.Waiting; w != nil && w.Reason != "" && w.Reason != "PodInitializing" && w.Reason != "ContainerCreating" {
				message = w.Message
				if last := c.Last.Terminated; last != nil {
					message = fmt.Sprintf("container %s: %s, exit code %d", c.Name, last.Reason, last.ExitCode)
				}
				return w.Reason, message
			}
			if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
				return t.Reason, fmt.Sprintf("container %s: exit code %d %s", c.Name, t.ExitCode, t.Message)
			}
		}
	}
	return "", ""
}

// nodeTile is what the overview needs to know about a node.
type nodeTile struct {
	Name    string   `json:"name"`
	Ready   bool     `json:"ready"`
	Cordon  bool     `json:"cordoned,omitempty"`
	Roles   []string `json:"roles,omitempty"`
	Version string   `json:"version,omitempty"`
	// CPU and Memory are allocatable, in thousandths of a core and in bytes, and Pods the number of pods.
	CPU    int64 `json:"cpu"`
	Memory int64 `json:"mem"`
	Pods   int64 `json:"pods"`
	// Problems are the conditions that should be false but are true, and Ready if it is not true.
	Problems []condition `json:"problems,omitempty"`
}

// nodeSummary converts a Node to its tile.
func nodeSummary(raw json.RawMessage) (any, error) {
	var n struct {
		Metadata struct {
			Name   string            `json:"name"`
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
		Spec struct {
			Unschedulable bool `json:"unschedulable"`
		} `json:"spec"`
		Status struct {
			Allocatable quantities  `json:"allocatable"`
			Conditions  []condition `json:"conditions"`
			Info        struct {
				Version string `json:"kubeletVersion"`
			} `json:"nodeInfo"`
		} `json:"status"`
	}
	if err := json.Unmarshal(raw, &n); err != nil {
		return nil, err
	}
	pods := n.Status.Allocatable["pods"]
	tile := nodeTile{
		Name: n.Metadata.Name, Cordon: n.Spec.Unschedulable, Roles: roles(n.Metadata.Labels), Version: n.Status.Info.Version,
		CPU: n.Status.Allocatable.cpu(), Memory: n.Status.Allocatable.memory(), Pods: pods.Value(),
	}
	for _, c := range n.Status.Conditions {
		isReady := c.Type == string(corev1.NodeReady)
		if isReady && c.Status == string(corev1.ConditionTrue) {
			tile.Ready = true
		} else if isReady || c.Status == string(corev1.ConditionTrue) {
			tile.Problems = append(tile.Problems, c)
		}
	}
	return tile, nil
}

// roles returns the roles of a node, which are part of the names of labels, in alphabetical order.
func roles(labels map[string]string) []string {
	var found []string
	for label := range labels {
		if role, ok := strings.CutPrefix(label, "node-role.kubernetes.io/"); ok && role != "" {
			found = append(found, role)
		}
	}
	slices.Sort(found)
	return found
}
