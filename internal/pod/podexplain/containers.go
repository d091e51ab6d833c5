package podexplain

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// containerFindings are findings about containers.
type containerFindings struct{ *findings }

// container is a container of the pod with its status.
type container struct {
	*corev1.ContainerStatus
	spec *corev1.Container
	// kind is "container", "init container" or "sidecar".
	kind string
}

// String returns the name for a sentence.
func (c container) String() string { return describe(c.kind, c.Name) }

// containerList returns the containers with a status: the init containers first.
func (f *findings) containerList() []container {
	pod := f.in.Pod
	var out []container
	add := func(specs []corev1.Container, statuses []corev1.ContainerStatus, kind string) {
		for i := range statuses {
			one := container{&statuses[i], nil, kind}
			for j := range specs {
				if specs[j].Name == statuses[i].Name {
					one.spec = &specs[j]
				}
			}
			if kind != "container" && one.spec != nil && one.spec.RestartPolicy != nil && *one.spec.RestartPolicy == corev1.ContainerRestartPolicyAlways {
				one.kind = "sidecar"
			}
			out = append(out, one)
		}
	}
	add(pod.Spec.InitContainers, pod.Status.InitContainerStatuses, "init container")
	add(pod.Spec.Containers, pod.Status.ContainerStatuses, "container")
	return out
}

// containers explains the containers of a pod that has a node.
func (f containerFindings) containers() {
	pod := f.in.Pod
	all := f.containerList()
	if len(all) == 0 {
		f.starting()
		return
	}
	blocked := "" // the init container that has not completed
	for _, c := range all {
		switch {
		case c.State.Waiting != nil:
			f.waiting(c, blocked)
		case c.State.Terminated != nil:
			f.terminated(c)
		case c.State.Running != nil:
			f.running(c)
		}
		if c.kind == "init container" && (c.State.Terminated == nil || c.State.Terminated.ExitCode != 0) && blocked == "" {
			blocked = c.Name
			if c.State.Running != nil {
				f.info("InitContainer", fmt.Sprintf("Run `kubectl logs %s -n %s -c %s` if it takes longer than expected.", pod.Name, pod.Namespace, c.Name), "The %s is running; the containers start after it has exited with code 0.", c)
			}
		}
	}
	if c := condition(pod, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
		f.info("Ready", "", "The pod is running and ready since %s.", c.LastTransitionTime.UTC().Format("2006-01-02 15:04:05 UTC"))
	}
}

// waiting explains a container that waits. blocked is the init container that must complete before, or empty.
func (f containerFindings) waiting(c container, blocked string) {
	w := c.State.Waiting
	switch w.Reason {
	case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError", "RegistryUnavailable":
		f.image(c, w.Reason, w.Message)
	case "CrashLoopBackOff":
		f.crash(c)
	case "CreateContainerConfigError":
		f.configError(c, w.Message)
	case "CreateContainerError", "RunContainerError":
		f.startError(c, w.Message)
	case "PodInitializing":
		if blocked == "" {
			f.starting()
		}
	case "ContainerCreating", "":
		f.starting()
	default:
		f.problem(w.Reason, "", "The %s is waiting (%s): %s", c, w.Reason, sentence(w.Message))
	}
}

// image explains why the image of a container is missing.
func (f containerFindings) image(c container, reason, message string) {
	image := c.Image
	if c.spec != nil {
		image = c.spec.Image
	}
	// While the kubelet waits for the next attempt, the cause is only in the event.
	if e := f.lastEvent("", "", "Failed"); e != nil && reason == "ImagePullBackOff" && strings.Contains(e.Message, image) && !strings.HasPrefix(e.Message, "Error: ") {
		message = e.Message
	} else if detail := between(message+"\n", "ErrImagePull: ", "\n"); detail != "" {
		message = detail
	}
	begin := fmt.Sprintf("The %s cannot start, because its image %q", c, image)
	switch {
	case reason == "ErrImageNeverPull":
		f.problem("ImageNeverPull", "Import the image on the node, or set imagePullPolicy: IfNotPresent.", "%s is not on the node, and imagePullPolicy is Never.", begin)
	case reason == "InvalidImageName":
		f.problem("InvalidImageName", "Correct the name of the image.", "%s has an invalid name: %s", begin, sentence(message))
	case contains(message, "unauthorized", "authentication required", "403 forbidden", "401", "denied", "no basic auth"):
		f.problem("ImageUnauthorized", "Create a Secret with `kubectl create secret docker-registry` and name it in imagePullSecrets. Many registries give the same answer for images that do not exist, so check the name too.", "%s is not available without or with these credentials: %s", begin, sentence(message))
	case contains(message, "not found", "manifest unknown", "name unknown", "404"):
		f.problem("ImageNotFound", "Correct the name or the tag of the image.", "%s does not exist in the registry: %s", begin, sentence(message))
	case contains(message, "no such host", "connection refused", "timeout", "no route", "network is unreachable", "deadline exceeded", "dial tcp", "server misbehaving"):
		f.problem("RegistryUnreachable", "Check the name of the registry and the network and DNS of the node, or configure a mirror.", "%s cannot be pulled, because the node does not reach the registry: %s", begin, sentence(message))
	case contains(message, "x509", "certificate"):
		f.problem("RegistryCertificate", "Install the CA of the registry on the node.", "%s cannot be pulled, because the node does not trust the certificate of the registry: %s", begin, sentence(message))
	case contains(message, "no space left"):
		f.problem("DiskFull", "Free disk space on the node.", "%s cannot be stored, because the disk of the node is full.", begin)
	default:
		f.problem("ImagePull", "", "%s cannot be pulled: %s", begin, sentence(message))
	}
}

// configError explains a container whose configuration is incomplete.
func (f containerFindings) configError(c container, message string) {
	kind, name, key := "ConfigMap", between(message, `configmap "`, `"`), between(message, "couldn't find key ", " in ")
	if strings.Contains(message, "secret") || strings.Contains(message, "Secret ") {
		kind = "Secret"
		name = between(message, `secret "`, `"`)
	}
	resource := strings.ToLower(kind)
	switch {
	case key != "":
		where, _, _ := strings.Cut(after(after(message, " in ConfigMap "), " in Secret "), " ")
		f.problem("MissingKey", fmt.Sprintf("Add the key with `kubectl edit %s %s`, or mark the reference as optional. The container then starts without a restart of the pod.", resource, where[strings.LastIndex(where, "/")+1:]),
			"The %s cannot start, because the %s %q has no key %q.", c, kind, where, key)
	case name != "" && contains(message, "not found"):
		f.problem("Missing"+kind, fmt.Sprintf("Create the %s %q in namespace %s, or mark the reference as optional. The container then starts without a restart of the pod.", kind, name, f.in.Pod.Namespace),
			"The %s cannot start, because the %s %q does not exist.", c, kind, name)
	case contains(message, "runAsNonRoot"):
		f.problem("RunAsNonRoot", "Set runAsUser to a number other than 0, or use an image with such a user.", "The %s cannot start, because runAsNonRoot is set and its image would run as root or as a user name: %s", c, sentence(message))
	default:
		f.problem("ContainerConfig", "", "The %s cannot start, because its configuration is invalid: %s", c, sentence(message))
	}
}

// startError explains a container that the runtime cannot create or start.
func (f containerFindings) startError(c container, message string) {
	switch {
	case contains(message, "executable file not found", "no such file or directory", "not found in $PATH"):
		f.problem("CommandNotFound", "Correct command and args of the container: the image does not contain the program.", "The %s cannot start, because its command does not exist in the image: %s", c, sentence(message))
	case contains(message, "permission denied"):
		f.problem("CommandNotExecutable", "Make the file executable in the image, or check the user of the container.", "The %s cannot start, because its command is not executable: %s", c, sentence(message))
	default:
		f.problem("ContainerStart", "", "The runtime cannot start the %s: %s", c, sentence(message))
	}
}

// starting explains a pod whose containers are not created yet.
func (f containerFindings) starting() {
	before := len(f.list)
	if e := f.lastEvent("", "", "FailedMount", "FailedAttachVolume", "FailedMapVolume"); e != nil {
		f.mount(e.Message)
	}
	if e := f.lastEvent("", "", "FailedCreatePodSandBox"); e != nil {
		f.problem("Sandbox", "Check the CNI plugin and the container runtime of the node; the kubelet retries.", "The sandbox or the network of the pod cannot be created: %s", sentence(e.Message))
	}
	if e := f.lastEvent("", "", "NetworkNotReady"); e != nil && len(f.list) == before {
		f.problem("NetworkNotReady", "Check the pod network of the node.", "The network of the node is not ready: %s", sentence(e.Message))
	}
	if len(f.list) > before {
		return
	}
	if e := f.lastEvent("", "", "Pulling"); e != nil {
		if done := f.lastEvent("", "", "Pulled"); done == nil || eventTime(done).Before(eventTime(e)) {
			f.info("Pulling", "", "The node is pulling an image since %s.", eventTime(e).UTC().Format("15:04:05 UTC"))
			return
		}
	}
	f.info("Starting", "", "The kubelet is starting the containers.")
}

// crash explains a container that is restarted with a back-off.
func (f containerFindings) crash(c container) {
	if t := c.LastTerminationState.Terminated; t != nil {
		f.exit(c, t, fmt.Sprintf("has stopped %d times, so the kubelet delays its next start", c.RestartCount))
		return
	}
	f.problem("CrashLoop", f.logs(c), "The %s stops repeatedly, so the kubelet delays its next start.", c)
}

// terminated explains a container that has stopped.
func (f containerFindings) terminated(c container) {
	t := c.State.Terminated
	if t.ExitCode == 0 && t.Reason != "OOMKilled" {
		if c.kind == "container" {
			f.info("Completed", "", "The %s has exited with code 0.", c)
		}
		return
	}
	f.exit(c, t, "has stopped")
}

// running explains a running container: former restarts, and probes.
func (f containerFindings) running(c container) {
	if c.kind == "init container" {
		return
	}
	unhealthy := f.lastEvent("", "", "Unhealthy")
	recent := unhealthy != nil && eventTime(unhealthy).After(c.State.Running.StartedAt.Time)
	switch {
	case c.Started != nil && !*c.Started && c.spec != nil && c.spec.StartupProbe != nil:
		f.probe(c, "startup", recent, unhealthy, "the container is restarted if the probe does not succeed in time")
	case !c.Ready && c.spec != nil && c.spec.ReadinessProbe != nil:
		f.probe(c, "readiness", recent, unhealthy, "the pod gets no traffic from Services")
	}
	if t := c.LastTerminationState.Terminated; t != nil && c.RestartCount > 0 {
		before := len(f.list)
		f.exit(c, t, fmt.Sprintf("was restarted %d times; the last time it", c.RestartCount))
		if c.Ready { // it works now
			for i := before; i < len(f.list); i++ {
				f.list[i].Severity = Info
			}
		}
	}
}

// probe explains a container whose probe has not succeeded.
func (f containerFindings) probe(c container, kind string, known bool, e *corev1.Event, consequence string) {
	message := ""
	if known {
		message = " The last result: " + sentence(after(e.Message, "probe failed: "))
	}
	f.problem(strings.ToUpper(kind[:1])+kind[1:]+"Probe", "Check port and path of the probe, and the log of the container: `"+f.logCommand(c, false)+"`.",
		"The %s is running, but its %s probe has not succeeded: %s.%s", c, kind, consequence, message)
}

// exit explains why a container has stopped. how continues the name of the container, such as "has stopped".
func (f containerFindings) exit(c container, t *corev1.ContainerStateTerminated, how string) {
	killed := f.lastEvent("", "", "Killing")
	probe := f.lastEvent("", "", "Unhealthy")
	liveness := killed != nil && contains(killed.Message, "failed liveness probe", "failed startup probe")
	begin := fmt.Sprintf("The %s %s", c, how)
	code := fmt.Sprintf("exit code %d", t.ExitCode)
	switch {
	case t.Reason == "OOMKilled":
		limit := ""
		if c.spec != nil && !c.spec.Resources.Limits.Memory().IsZero() {
			limit = fmt.Sprintf(" of %s", c.spec.Resources.Limits.Memory())
		}
		f.problem("OOMKilled", "Raise the memory limit, or find out why the program needs so much memory.", "%s: the kernel killed it, because it used more memory than its limit%s (%s).", begin, limit, code)
	case liveness:
		message := ""
		if probe != nil {
			message = " The last result: " + sentence(probe.Message)
		}
		f.problem("LivenessProbe", "Check port and path of the probe, raise its timeouts, or add a startupProbe if the program starts slowly.", "%s: the kubelet stopped it, because its liveness or startup probe failed (%s).%s", begin, code, message)
	case t.Reason == "ContainerCannotRun" || t.Reason == "StartError" || t.ExitCode == 128 && t.Message != "":
		f.startError(c, t.Message)
	case t.ExitCode == 126:
		f.problem("CommandNotExecutable", "Make the file executable in the image, and check that it is for the architecture of the node.", "%s: its command is not executable (%s).", begin, code)
	case t.ExitCode == 127:
		f.problem("CommandNotFound", "Correct command and args of the container.", "%s: its command or a program that it runs does not exist (%s).", begin, code)
	case t.ExitCode == 137:
		f.problem("Killed", "If it was not deleted, look for a process that sends SIGKILL, and for memory pressure on the node.", "%s: it was killed with SIGKILL (%s).", begin, code)
	case t.ExitCode == 139:
		f.problem("SegmentationFault", "This is a defect of the program. "+f.logs(c), "%s: it has accessed invalid memory and received SIGSEGV (%s).", begin, code)
	case t.ExitCode == 143:
		f.problem("Terminated", f.logs(c), "%s: it received SIGTERM (%s).", begin, code)
	case t.ExitCode == 0:
		f.problem("Exited", "A container of a Deployment must not exit. Run a program that keeps running, or use a Job.", "%s with exit code 0: the program has finished, and the restartPolicy starts it again.", begin)
	default:
		message := ""
		if t.Message != "" {
			message = " Its message: " + sentence(t.Message)
		}
		f.problem("Error", f.logs(c), "%s with an error (%s).%s", begin, code, message)
	}
}

// logCommand returns the command that prints the log of a container. previous selects the log before the last restart.
func (f containerFindings) logCommand(c container, previous bool) string {
	out := fmt.Sprintf("kubectl logs %s -n %s -c %s", f.in.Pod.Name, f.in.Pod.Namespace, c.Name)
	if previous && c.State.Terminated == nil {
		out += " --previous"
	}
	return out
}

// logs returns a sentence with the command that prints the log of the run of a container that has stopped last.
func (f containerFindings) logs(c container) string {
	return "Read its log: `" + f.logCommand(c, true) + "`."
}
