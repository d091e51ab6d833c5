package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// create creates a pod. It retries while the API server is down.
func (c *churn) create(pod *corev1.Pod) error {
	for {
		_, err := c.kube.CoreV1().Pods("default").Create(c.ctx, pod, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) || apierrors.IsInvalid(err) || c.ctx.Err() != nil {
			if apierrors.IsAlreadyExists(err) {
				err = nil
			}
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// shell returns a pod with one container that runs a script.
func (c *churn) shell(name, node, script string) *corev1.Pod {
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"churn": strings.SplitN(name, "-", 2)[0]}},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "c", Image: busybox, ImagePullPolicy: corev1.PullNever, Command: []string{"sh", "-c", script}}},
		},
	}
}

func execProbe(period int32, cmd ...string) *corev1.Probe {
	return &corev1.Probe{PeriodSeconds: period, TimeoutSeconds: 5, FailureThreshold: 3, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: cmd}}}
}

// steady returns a pod that must not be disturbed. It counts in its log.
func (c *churn) steady(node int) *corev1.Pod {
	p := c.shell(fmt.Sprintf("steady-%d", node+1), c.names[node], "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done")
	app := &p.Spec.Containers[0]
	app.LivenessProbe, app.ReadinessProbe = execProbe(1, "true"), execProbe(1, "test", "-e", "/config/key")
	always := corev1.ContainerRestartPolicyAlways
	p.Spec.InitContainers = []corev1.Container{
		{Name: "init", Image: busybox, ImagePullPolicy: corev1.PullNever, Command: []string{"true"}},
		{Name: "side", Image: busybox, ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "100000"}, RestartPolicy: &always},
	}
	c.volumes(p)
	return p
}

// volumes adds a volume of each file-based kind to a pod.
func (c *churn) volumes(p *corev1.Pod) {
	size := resource.MustParse("1Mi")
	p.Spec.Volumes = []corev1.Volume{
		{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "churn"}}}},
		{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &size}}},
		{Name: "disk", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{
		{Name: "config", MountPath: "/config"}, {Name: "memory", MountPath: "/memory"}, {Name: "disk", MountPath: "/disk", SubPath: "sub"},
	}
}

// want is the expected state of a pod.
type want struct {
	pod *corev1.Pod
	// code is the expected exit code; -1: the pod runs and is ready.
	code int32
	// loose is true if the pod may be restarted when its runtime is killed, because a hook was
	// interrupted.
	loose bool
}

// pods returns the pods of a round.
func (c *churn) pods(round int, random *rand.Rand) (wants []want) {
	for i := range 8 {
		node := c.names[random.IntN(len(c.names))]
		name := func(kind string) string { return fmt.Sprintf("churn-%d-%d-%s", round, i, kind) }
		w := want{code: -1}
		switch random.IntN(7) {
		case 0:
			w.pod, w.code = c.shell(name("quick"), node, fmt.Sprintf("sleep 0.%d; exit 3", random.IntN(5))), 3
			w.pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		case 1:
			w.pod = c.shell(name("init"), node, "sleep 100000")
			for k := range 2 {
				w.pod.Spec.InitContainers = append(w.pod.Spec.InitContainers, corev1.Container{
					Name: fmt.Sprint("i", k), Image: busybox, ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "0.1"},
				})
			}
			w.pod.Spec.Containers[0].ReadinessProbe = execProbe(1, "true")
		case 2:
			always := corev1.ContainerRestartPolicyAlways
			w.pod, w.code = c.shell(name("side"), node, "sleep 0.2"), 0
			w.pod.Spec.RestartPolicy = corev1.RestartPolicyNever
			w.pod.Spec.InitContainers = []corev1.Container{{
				Name: "side", Image: busybox, ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "100000"}, RestartPolicy: &always,
				StartupProbe: execProbe(1, "true"),
			}}
		case 3:
			w.pod = c.shell(name("volumes"), node, "cat /config/key; sleep 100000")
			c.volumes(w.pod)
		case 4:
			w.pod, w.loose = c.shell(name("hooks"), node, "sleep 100000"), true
			hook := &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sleep", "0.1"}}}
			w.pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: hook, PreStop: hook}
		case 5:
			w.pod = c.shell(name("two"), node, "trap '' TERM; sleep 100000")
			second := *w.pod.Spec.Containers[0].DeepCopy()
			second.Name = "d"
			w.pod.Spec.Containers = append(w.pod.Spec.Containers, second)
			w.pod.Spec.Containers[0].LivenessProbe = execProbe(1, "true")
		case 6:
			w.pod = c.shell(name("port"), node, "mkdir /w; echo ok >/w/ok; exec httpd -f -p 80 -h /w")
			w.pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: int32(20000 + round*10 + i)}}
			w.pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, TimeoutSeconds: 5,
				ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ok", Port: intstr.FromInt32(80)}}}
		}
		wants = append(wants, w)
	}
	return wants
}

// errWrong is an error that waiting does not resolve.
var errWrong = errors.New("permanent error")

func (w want) check(p *corev1.Pod, touched bool) error {
	for i, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		// An init container that exited while there was no runtime may have failed, so it must run
		// again.
		last := s.LastTerminationState.Terminated
		unseen := i < len(p.Status.InitContainerStatuses) && last != nil && last.ExitCode == 255
		if s.RestartCount > 0 && w.code < 0 && !(touched && (w.loose || unseen)) {
			return fmt.Errorf("%w: container %s was restarted: %+v", errWrong, s.Name, s)
		}
	}
	if w.code < 0 {
		for _, cond := range p.Status.Conditions {
			if cond.Type == corev1.PodReady && cond.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("not ready: %+v", p.Status)
	}
	if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
		return fmt.Errorf("not terminated: %+v", p.Status)
	}
	for _, s := range p.Status.ContainerStatuses {
		if s.Name != "c" || s.State.Terminated == nil {
			continue
		}
		if got := s.State.Terminated.ExitCode; got != w.code && !(touched && got == 255) {
			return fmt.Errorf("%w: it terminated with %+v", errWrong, s.State.Terminated)
		}
		return nil
	}
	return fmt.Errorf("%w: it terminated without its container: %+v", errWrong, p.Status)
}

// settled waits until check returns nil for a pod, or for all pods if name is empty. If check is
// nil, the pods must be ready.
func (c *churn) settled(name string, check func(*corev1.Pod) error) {
	c.t.Helper()
	if check == nil {
		check = func(p *corev1.Pod) error { return want{code: -1}.check(p, false) }
	}
	var final error
	c.again(func() error {
		list, err := c.kube.CoreV1().Pods("default").List(c.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		found := false
		for i := range list.Items {
			p := &list.Items[i]
			if name != "" && p.Name != name {
				continue
			}
			found = true
			if err := check(p); errors.Is(err, errWrong) {
				final = fmt.Errorf("pod %s: %w", p.Name, err)
				return nil
			} else if err != nil {
				return fmt.Errorf("pod %s: %w", p.Name, err)
			}
		}
		if !found {
			return fmt.Errorf("no pod %s", name)
		}
		return nil
	})
	if final != nil {
		c.t.Error(final)
	}
}

// emptied waits until only the steady pods remain.
func (c *churn) emptied() {
	c.t.Helper()
	c.again(func() error {
		list, err := c.kube.CoreV1().Pods("default").List(c.ctx, metav1.ListOptions{LabelSelector: "churn!=steady"})
		if err == nil && len(list.Items) > 0 {
			var text []byte
			text, err = json.Marshal(list.Items[0].Status)
			err = errors.Join(err, fmt.Errorf("%d pods are left, such as %s: %s", len(list.Items), list.Items[0].Name, text))
		}
		return err
	})
}
