// Package podexplain explains in sentences why a pod is where it is, or why it is not running. It only evaluates objects that the
// caller has read.
package podexplain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// Input has the objects to evaluate. Those that do not exist, or that the caller may not read, are nil or empty.
type Input struct {
	// Pod is the pod to explain. It may be nil if Workloads is not empty.
	Pod *corev1.Pod
	// Workloads are the controllers of the pod, from the nearest to the farthest: Deployment, ReplicaSet, StatefulSet,
	// DaemonSet or Job.
	Workloads []any
	// Events are those of the pod, its claims and workloads.
	Events []corev1.Event
	// Node is the node of the pod.
	Node *corev1.Node
	// Claims are the claims of the pod that exist, and Classes all StorageClasses.
	Claims  []corev1.PersistentVolumeClaim
	Classes []storagev1.StorageClass
	// ClaimsKnown and ClassesKnown report whether the claims and the classes could be read.
	ClaimsKnown, ClassesKnown bool
	// Now is the current time.
	Now time.Time
}

// Severity is the importance of a Finding.
type Severity string

const (
	// Problem means that the pod does not run as intended.
	Problem Severity = "problem"
	// Info is an explanation, or something that ends without a change by the user.
	Info Severity = "info"
)

// Finding is one explanation.
type Finding struct {
	// Reason identifies the kind of finding for programs, such as ImageNotFound.
	Reason   string   `json:"reason"`
	Severity Severity `json:"severity"`
	// Sentence explains the cause, and Remedy what the user can do. Remedy may be empty.
	Sentence string `json:"sentence"`
	Remedy   string `json:"remedy,omitempty"`
}

// findings collects the findings of one explanation.
type findings struct {
	in   Input
	list []Finding
}

// problem adds a problem, unless it has been added.
func (f *findings) problem(reason, remedy, format string, args ...any) {
	f.add(Finding{reason, Problem, fmt.Sprintf(format, args...), remedy})
}

// info adds an explanation, unless it has been added.
func (f *findings) info(reason, remedy, format string, args ...any) {
	f.add(Finding{reason, Info, fmt.Sprintf(format, args...), remedy})
}

func (f *findings) add(one Finding) {
	if !slices.Contains(f.list, one) {
		f.list = append(f.list, one)
	}
}

// Explain returns the findings, problems first. It returns at least one.
func Explain(in Input) []Finding {
	f := &findings{in: in}
	if in.Pod == nil {
		f.workloads()
	} else {
		f.pod()
	}
	if len(f.list) == 0 {
		f.info("Unknown", "", "No cause is visible in the status and the events. Events are deleted after an hour.")
	}
	slices.SortStableFunc(f.list, func(a, b Finding) int { return -cmp.Compare(a.Severity, b.Severity) })
	return f.list
}

// pod explains the pod: deletion, termination, placement, and its containers.
func (f *findings) pod() {
	pod := f.in.Pod
	switch {
	case pod.DeletionTimestamp != nil:
		// The containers stop because of the deletion.
		f.deletion()
		if c := condition(pod, corev1.DisruptionTarget); c != nil && c.Status == corev1.ConditionTrue {
			f.info("Disruption", "", "The pod is deleted because of a disruption (%s): %s", c.Reason, sentence(c.Message))
		}
		if pod.Spec.NodeName != "" {
			f.placement()
			f.node()
		}
	case pod.Status.Phase == corev1.PodSucceeded:
		f.info("Succeeded", "", "All containers have exited with code 0. The pod is not restarted.")
	case pod.Status.Phase == corev1.PodFailed:
		f.failure()
	case pod.Spec.NodeName == "":
		f.scheduling()
		f.volumes()
	default:
		f.placement()
		f.node()
		containerFindings{f}.containers()
		f.volumes()
		f.readiness()
	}
}

// describe returns the name of an object for a sentence.
func describe(kind, name string) string { return fmt.Sprintf("%s %q", kind, name) }

// lastEvent returns the newest event about an object with one of the reasons, or nil. An empty name stands for the pod.
func (f *findings) lastEvent(kind, name string, reasons ...string) *corev1.Event {
	if name == "" && f.in.Pod != nil {
		kind, name = "Pod", f.in.Pod.Name
	}
	var last *corev1.Event
	for i := range f.in.Events {
		e := &f.in.Events[i]
		if e.InvolvedObject.Kind != kind || e.InvolvedObject.Name != name || !slices.Contains(reasons, e.Reason) {
			continue
		}
		if last == nil || eventTime(e).After(eventTime(last)) {
			last = e
		}
	}
	return last
}

// eventTime returns when an event was last observed.
func eventTime(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}

// condition returns the condition of the pod with the type, or nil.
func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// sentence returns text with an upper case letter at the beginning and a full stop.
func sentence(text string) string {
	text = strings.TrimSpace(text)
	if text == "" {
		return ""
	}
	text = strings.ToUpper(text[:1]) + text[1:]
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	return text
}

// between returns the text between two marks, or "" if one of them is missing.
func between(text, from, to string) string {
	_, rest, ok := strings.Cut(text, from)
	if !ok {
		return ""
	}
	out, _, ok := strings.Cut(rest, to)
	if !ok {
		return ""
	}
	return out
}

// contains reports whether text contains one of the parts. It ignores case.
func contains(text string, parts ...string) bool {
	text = strings.ToLower(text)
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, strings.ToLower(part)) })
}

// workloads explains why workloads have no pods.
func (f *findings) workloads() {
	for _, w := range f.in.Workloads {
		switch w := w.(type) {
		case *appsv1.Deployment:
			f.deployment(w)
		case *appsv1.ReplicaSet:
			if w.Spec.Replicas != nil && *w.Spec.Replicas == 0 {
				f.info("NoReplicas", "Run `kubectl scale` with the desired number.", "The %s has 0 replicas, so it creates no pods.", describe("ReplicaSet", w.Name))
			}
			f.failedCreate("ReplicaSet", w.Name)
		case *appsv1.StatefulSet:
			if w.Spec.Replicas != nil && *w.Spec.Replicas == 0 {
				f.info("NoReplicas", "Run `kubectl scale` with the desired number.", "The %s has 0 replicas, so it creates no pods.", describe("StatefulSet", w.Name))
			}
			f.failedCreate("StatefulSet", w.Name)
		case *appsv1.DaemonSet:
			if w.Status.DesiredNumberScheduled == 0 {
				f.problem("NoMatchingNode", "Compare the nodeSelector, the affinity and the tolerations of the DaemonSet with the labels and taints of the nodes.", "No node matches the %s, so it creates no pods.", describe("DaemonSet", w.Name))
			}
			f.failedCreate("DaemonSet", w.Name)
		case *batchv1.Job:
			f.job(w)
		}
	}
}

// deployment explains why a Deployment has no pods.
func (f *findings) deployment(d *appsv1.Deployment) {
	name := describe("Deployment", d.Name)
	switch {
	case d.Spec.Replicas != nil && *d.Spec.Replicas == 0:
		f.info("NoReplicas", "Run `kubectl scale deployment/"+d.Name+" --replicas=1`.", "The %s has 0 replicas, so it creates no pods.", name)
	case d.Spec.Paused:
		f.problem("Paused", "Run `kubectl rollout resume deployment/"+d.Name+"`.", "The %s is paused, so changes of its template are not rolled out.", name)
	}
	for i := range d.Status.Conditions {
		c := &d.Status.Conditions[i]
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			f.creation(name, c.Message)
		}
	}
}

// job explains why a Job has no pods.
func (f *findings) job(j *batchv1.Job) {
	name := describe("Job", j.Name)
	if j.Spec.Suspend != nil && *j.Spec.Suspend {
		f.info("Suspended", "Set spec.suspend to false.", "The %s is suspended, so it has no pods.", name)
	}
	for _, c := range j.Status.Conditions {
		if c.Status != corev1.ConditionTrue {
			continue
		}
		switch c.Type {
		case batchv1.JobComplete:
			f.info("JobComplete", "", "The %s is complete, so it creates no more pods.", name)
		case batchv1.JobFailed:
			f.problem("JobFailed", "Fix the cause, then delete the Job and create it again. `kubectl logs job/"+j.Name+"` prints the logs if a pod still exists.", "The %s has failed (%s): %s", name, c.Reason, sentence(c.Message))
		}
	}
	f.failedCreate("Job", j.Name)
}

// failedCreate explains the newest event of a workload that reports that a pod could not be created.
func (f *findings) failedCreate(kind, name string) {
	failed, created := f.lastEvent(kind, name, "FailedCreate"), f.lastEvent(kind, name, "SuccessfulCreate")
	if failed != nil && (created == nil || eventTime(failed).After(eventTime(created))) {
		f.creation(describe(kind, name), failed.Message)
	}
}

// creation explains the message with which the API server rejected a pod of a workload.
func (f *findings) creation(name, message string) {
	switch {
	case strings.Contains(message, "exceeded quota"):
		quota, _, _ := strings.Cut(after(message, "exceeded quota: "), ",")
		f.problem("QuotaExceeded", fmt.Sprintf("Delete objects that are not needed, lower the requests of the pods, or raise the quota: `kubectl describe quota %s`.", quota),
			"The %s cannot create a pod, because the ResourceQuota %q is used up: %s", name, quota, sentence(after(message, "exceeded quota: "+quota+", ")))
	case strings.Contains(message, "failed quota"):
		quota, _, _ := strings.Cut(after(message, "failed quota: "), ":")
		f.problem("QuotaNeedsRequests", "Set these requests or limits for each container, or create a LimitRange with defaults.",
			"The %s cannot create a pod, because the ResourceQuota %q requires values that the pod does not have: %s", name, quota, sentence(after(message, "failed quota: "+quota+": ")))
	case strings.Contains(message, "violates PodSecurity"):
		f.problem("PodSecurity", "Change the securityContext as the message says, or the label pod-security.kubernetes.io/enforce of the namespace.",
			"The %s cannot create a pod, because the Pod Security Standard of the namespace forbids it: %s", name, sentence(after(message, "violates ")))
	case strings.Contains(message, "serviceaccount") && strings.Contains(message, "not found"):
		f.problem("ServiceAccountNotFound", "Create the ServiceAccount, or correct serviceAccountName.", "The %s cannot create a pod, because its ServiceAccount does not exist: %s", name, sentence(message))
	case contains(message, "webhook"):
		f.problem("AdmissionWebhook", "Check the service of the webhook, or the rule that it enforces: `kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations`.",
			"The %s cannot create a pod, because an admission webhook rejects it or does not respond: %s", name, sentence(message))
	default:
		f.problem("FailedCreate", "Correct the pod template.", "The %s cannot create a pod: %s", name, sentence(message))
	}
}

// after returns the text after a mark, or the text itself if it does not contain the mark.
func after(text, mark string) string {
	if _, rest, ok := strings.Cut(text, mark); ok {
		return rest
	}
	return text
}
