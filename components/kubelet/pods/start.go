package pods

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/images"
	"hyperkube/components/kubelet/podstate"
	"hyperkube/components/kubelet/probe"
	"hyperkube/components/kubelet/volume"
)

// Reasons of a container that waits.
const (
	crashLoopBackOff           = "CrashLoopBackOff"
	createContainerConfigError = "CreateContainerConfigError"
	createContainerError       = "CreateContainerError"
	runContainerError          = "RunContainerError"
	postStartHookError         = "PostStartHookError"
)

// retryStart is how long a container waits that could not be made, when
// nothing else says that it may work now.
const retryStart = 10 * time.Second

// startContainer pulls, makes and starts one container, and runs its postStart
// hook. What went wrong is in the container's slot when it returns an error.
func (w *worker) startContainer(ctx context.Context, pod *v1.Pod, s podstate.Start) error {
	c, kind := podstate.Find(pod, s.Name)
	if c == nil {
		return fmt.Errorf("no container %s", s.Name)
	}
	err := (&attempt{worker: w, pod: pod, start: s, container: c, kind: kind}).run(ctx)
	w.countStart(c, kind, err)
	return err
}

// attempt is one attempt to make and start a container. Its steps return nil, an error
// that says nothing of the container (the pod is wanted otherwise, the runtime is away),
// or what fail made.
type attempt struct {
	*worker
	pod       *v1.Pod
	start     podstate.Start
	container *v1.Container
	kind      podstate.Kind
}

func (a *attempt) run(ctx context.Context) error {
	a.mu.Lock()
	box := a.obs.Sandbox()
	ips := a.ips()
	volumes := a.volumes
	a.mu.Unlock()
	if box == nil {
		return errors.New("no sandbox")
	}
	id, cfg := a.start.Made, &runtimeapi.ContainerConfig{}
	var err error
	if id == "" {
		id, cfg, err = a.make(ctx, box, ips, volumes)
	} else if err = a.host.ruled(ctx, a.pod, ips); err != nil {
		err = a.refuse(ctx, createContainerError, err.Error())
	}
	if err != nil {
		return err
	}
	hook := a.container.Lifecycle != nil && a.container.Lifecycle.PostStart != nil && a.kind != podstate.Ephemeral
	a.mu.Lock()
	slot := a.slots[a.start.Name]
	slot.RetryAt = time.Time{}
	a.slots[a.start.Name] = slot
	if hook {
		a.hooks[id] = true
	}
	a.mu.Unlock()
	ended, err := a.begin(ctx, id, box.ID, cfg)
	if err != nil {
		return err
	}
	a.update(func() {
		slot := a.slots[a.start.Name]
		slot.Waiting, slot.ForceRestart = nil, ""
		a.slots[a.start.Name] = slot
		if ended {
			delete(a.hooks, id)
		}
	})
	a.host.linkLog(a.pod, a.start.Name, id, a.start.Attempt)
	if hook && !ended {
		return a.postStart(ctx, id)
	}
	return nil
}

// make makes the container, and returns its ID and what it was made of.
func (a *attempt) make(ctx context.Context, box *podstate.Sandbox, ips []string, volumes map[string]volume.Result) (string, *runtimeapi.ContainerConfig, error) {
	sandbox, err := a.host.sandboxConfig(a.pod, box.Attempt)
	if err != nil {
		return "", nil, a.fail(ctx, createContainerConfigError, err.Error(), time.Now().Add(retryStart))
	}
	image, err := a.image(ctx, sandbox, volumes)
	if err != nil {
		return "", nil, err
	}
	in := containerInput{container: a.container, attempt: a.start.Attempt, image: image, volumes: volumes, ips: ips}
	if a.kind == podstate.Ephemeral {
		in.target = a.targetOf(a.pod, a.start.Name)
	}
	cfg, err := a.host.containerConfig(ctx, a.pod, in)
	if err != nil {
		return "", nil, a.refuse(ctx, createContainerConfigError, apiText(err))
	}
	if err := a.host.ruled(ctx, a.pod, ips); err != nil {
		return "", nil, a.refuse(ctx, createContainerError, err.Error())
	}
	call, cancel := carriedThrough(ctx)
	defer cancel()
	if a.start.Stale != "" {
		if err := a.dropStale(call, a.pod, a.start); cri.IsGone(err) {
			return "", nil, err
		} else if err != nil {
			return "", nil, a.refuse(ctx, createContainerError, err.Error())
		}
	}
	id, err := a.create(ctx, call, &runtimeapi.CreateContainerRequest{PodSandboxId: box.ID, Config: cfg, SandboxConfig: sandbox})
	return id, cfg, err
}

// image makes sure of the images and returns that of the container.
func (a *attempt) image(ctx context.Context, sandbox *runtimeapi.PodSandboxConfig, volumes map[string]volume.Result) (string, error) {
	image, err := a.ensureImage(ctx, a.pod, a.container, sandbox, volumes)
	var failed *images.Error
	if err == nil || cri.IsGone(err) || !errors.As(err, &failed) {
		return image, err
	}
	a.host.event(a.pod, a.start.Name, true, "Failed", "Error: "+failed.Reason)
	retry := failed.RetryAt
	if retry.IsZero() {
		retry = time.Now().Add(5 * time.Minute)
	}
	return "", a.fail(ctx, failed.Reason, failed.Message, retry)
}

// create makes the container and returns its ID. It is carried through by call, whatever
// becomes of ctx.
func (a *attempt) create(ctx, call context.Context, req *runtimeapi.CreateContainerRequest) (string, error) {
	created, err := a.host.CRI.Runtime.CreateContainer(call, req)
	if err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		if cri.IsGone(err) {
			return "", err
		}
		// It may be there nevertheless, or about to be, if the runtime took too long or
		// the call of an earlier kubelet is under way.
		refused := a.refuse(ctx, createContainerError, cri.Message(err))
		a.update(func() {
			a.dirty = true
			slot := a.slots[a.start.Name]
			slot.Unmade = true
			a.slots[a.start.Name] = slot
		})
		return "", refused
	}
	a.host.event(a.pod, a.start.Name, false, "Created", "Container created")
	return created.ContainerId, nil
}

// begin starts the container that was made, and sees what became of it. It is carried
// through, whatever becomes of ctx. ended: an earlier kubelet had started it, and it is over.
func (a *attempt) begin(ctx context.Context, id, sandbox string, cfg *runtimeapi.ContainerConfig) (ended bool, err error) {
	call, cancel := carriedThrough(ctx)
	defer cancel()
	_, startErr := a.host.CRI.Runtime.StartContainer(call, &runtimeapi.StartContainerRequest{ContainerId: id})
	if startErr == nil {
		a.started(call, id, cfg)
	}
	if err := a.learn(ctx, a.pod, a.start, id, sandbox); err != nil {
		// Nobody knows whether it runs; should it, its hook is lost.
		a.update(func() { delete(a.hooks, id) })
		return false, err
	}
	if startErr == nil {
		return false, nil
	}
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	a.mu.Lock()
	st := a.obs.ByID(id)
	running := st != nil && st.State == podstate.Running
	exited := st != nil && st.State == podstate.Exited
	ended = exited && !st.StartedAt.IsZero()
	a.mu.Unlock()
	if a.start.Made == id && (running || ended) {
		// The call of an earlier kubelet was under way and came first.
		a.started(call, id, cfg)
		return ended, nil
	}
	a.update(func() { delete(a.hooks, id) })
	if cri.IsGone(startErr) {
		// The runtime is there again and knows what came of it.
		return false, startErr
	}
	a.host.event(a.pod, a.start.Name, true, "Failed", "Error: "+cri.Message(startErr))
	retry := time.Now().Add(retryStart)
	if exited {
		// It counts as an exit; the back-off of restarts takes over.
		retry = time.Time{}
	}
	return false, a.fail(ctx, runContainerError, cri.Message(startErr), retry)
}

// started tells that the container was started.
func (a *attempt) started(ctx context.Context, id string, cfg *runtimeapi.ContainerConfig) {
	a.host.event(a.pod, a.start.Name, false, "Started", "Container started")
	if a.host.Hooks.Started != nil {
		a.host.Hooks.Started(ctx, a.pod, a.start.Name, id, cfg)
	}
}

// fail says in the container's slot why it waits, and until when; the zero time is as
// long as it takes. It returns the error that says the same.
func (a *attempt) fail(ctx context.Context, reason, message string, retryAt time.Time) error {
	if ctx.Err() == nil {
		a.update(func() {
			slot := a.slots[a.start.Name]
			slot.Waiting = &v1.ContainerStateWaiting{Reason: reason, Message: message}
			slot.RetryAt, slot.Unmade = retryAt, false
			a.slots[a.start.Name] = slot
		})
	}
	return &startFailure{reason, message}
}

// refuse is fail with an event, of what is tried again soon. It returns ctx's error if
// that has ended, for then nothing is wrong with the container.
func (a *attempt) refuse(ctx context.Context, reason, message string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	a.host.event(a.pod, a.start.Name, true, "Failed", "Error: "+message)
	return a.fail(ctx, reason, message, time.Now().Add(retryStart))
}

// ruledWithin bounds how long a container waits for its pod's network to be ruled.
const ruledWithin = 30 * time.Second

// ruled returns once what rules the pod's network holds for its addresses.
func (h *Host) ruled(ctx context.Context, pod *v1.Pod, ips []string) error {
	if h.Hooks.Network == nil || pod.Spec.HostNetwork {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ruledWithin)
	defer cancel()
	return h.Hooks.Network(ctx, pod, ips)
}

// dropStale removes a container that was made and never started, so that
// another of the same attempt takes its place.
func (w *worker) dropStale(ctx context.Context, pod *v1.Pod, s podstate.Start) error {
	if _, err := w.host.CRI.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: s.Stale}); err != nil && !cri.IsNotFound(err) {
		return fmt.Errorf("removing a container that was never started: %w", err)
	}
	w.host.unlinkLog(pod, s.Name, s.Stale)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget(s.Stale)
	return nil
}

// learn asks the runtime for a container that was just made. From then on the
// back-off of restarts is that container's: before, it would be taken for one of
// the start that is under way.
func (w *worker) learn(ctx context.Context, pod *v1.Pod, s podstate.Start, id, sandbox string) error {
	st, err := w.host.CRI.Container(ctx, id)
	if err != nil {
		w.update(func() { w.dirty = true })
		return err
	}
	st.SandboxID = sandbox
	w.host.fillMessage(pod, &st, nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.learned++
	slot := w.slots[s.Name]
	slot.Crash, slot.Next = s.Crash, 0
	w.slots[s.Name] = slot
	if old := w.obs.ByID(id); old != nil {
		*old = st
	} else {
		w.obs.Containers = append([]podstate.Container{st}, w.obs.Containers...)
	}
	return nil
}

// postStart runs the hook of the container that was started, and stops it if that fails.
func (a *attempt) postStart(ctx context.Context, id string) error {
	c := a.container
	a.mu.Lock()
	ip := a.podIP()
	a.mu.Unlock()
	err := a.host.Prober.Hook(ctx, probe.Target{Pod: a.pod, Container: c, ContainerID: id, PodIP: ip, Warn: a.host.warns(a.pod)}, c.Lifecycle.PostStart)
	a.update(func() { delete(a.hooks, id) })
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	a.log.Info("a postStart hook failed", "container", c.Name, "error", err)
	a.host.event(a.pod, c.Name, true, "FailedPostStartHook", "PostStartHook failed")
	a.mu.Lock()
	a.startKill(ctx, id, "FailedPostStartHook", a.killGrace(id))
	k := a.kills[id]
	a.mu.Unlock()
	if k != nil {
		select {
		case <-k.done:
		case <-ctx.Done():
		}
	}
	return a.fail(ctx, postStartHookError, err.Error(), time.Time{})
}

// targetOf returns the ID of the container that an ephemeral one looks at.
func (w *worker) targetOf(pod *v1.Pod, name string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range pod.Spec.EphemeralContainers {
		e := &pod.Spec.EphemeralContainers[i]
		if e.Name == name && e.TargetContainerName != "" {
			if st := w.obs.Latest(e.TargetContainerName); st != nil {
				return st.ID
			}
		}
	}
	return ""
}

// ensureImage makes sure of the container's image and of the images that are
// volumes of it.
func (w *worker) ensureImage(ctx context.Context, pod *v1.Pod, c *v1.Container, sandbox *runtimeapi.PodSandboxConfig, volumes map[string]volume.Result) (string, error) {
	var secrets []*v1.Secret
	read := sync.OnceFunc(func() {
		for _, ref := range pod.Spec.ImagePullSecrets {
			s, err := w.host.Objects.Secret(ctx, pod.Namespace, ref.Name)
			if err != nil {
				w.host.event(pod, "", true, "FailedToRetrieveImagePullSecret",
					fmt.Sprintf("Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", ref.Name))
				continue
			}
			secrets = append(secrets, s)
		}
	})
	ensure := func(image string, policy v1.PullPolicy) (string, error) {
		own := func(ctx context.Context) ([]images.Credential, error) {
			read()
			list := images.Auths(image, secrets)
			if w.host.Images.Providers.Accounts(image) {
				account, err := w.host.Images.Providers.Account(ctx, pod)
				if err != nil {
					return nil, err
				}
				if account != nil {
					list = append(list, images.Credential{Account: pullAccount(account)})
				}
			}
			return list, nil
		}
		all := func(ctx context.Context) ([]images.Credential, error) {
			read()
			list := append(images.Auths(image, secrets), images.NodeAuths(image, w.host.Images.DockerConfigs)...)
			for _, c := range w.host.Images.Providers.For(ctx, pod, image) {
				one := images.Credential{Auth: c.Auth}
				if c.Account != nil {
					one.Account = pullAccount(c.Account)
				}
				list = append(list, one)
			}
			return list, nil
		}
		begin, end := w.pulling()
		defer end()
		return w.host.Images.Puller.Ensure(ctx, images.Request{
			Pod: pod, Container: c.Name, Image: image, Policy: policy, Own: own, All: all, Sandbox: sandbox,
			Event: func(warning bool, reason, message string) { w.host.event(pod, c.Name, warning, reason, message) },
			// A pull may take long: what is known so far is told.
			Pulling: begin,
		})
	}
	for i := range c.VolumeMounts {
		if v, ok := volumes[c.VolumeMounts[i].Name]; ok && v.Image != nil {
			if _, err := ensure(v.Image.Reference, v.Image.PullPolicy); err != nil {
				return "", err
			}
		}
	}
	policy := c.ImagePullPolicy
	if policy == "" {
		policy = v1.PullIfNotPresent
	}
	return ensure(c.Image, policy)
}

func pullAccount(a *v1.ServiceAccount) *kubeletv1beta1.ImagePullServiceAccount {
	return &kubeletv1beta1.ImagePullServiceAccount{UID: string(a.UID), Namespace: a.Namespace, Name: a.Name}
}

// linkLog makes the link by which log collectors find a container's log.
func (h *Host) linkLog(pod *v1.Pod, container, id string, attempt uint32) {
	if h.ContainerLogs == "" {
		return
	}
	if err := os.MkdirAll(h.ContainerLogs, 0o755); err != nil {
		h.Log.Debug("making the directory of container logs failed", "error", err)
		return
	}
	target := filepath.Join(h.LogDir(pod), container, fmt.Sprintf("%d.log", attempt))
	if err := os.Symlink(target, h.logLink(pod, container, id)); err != nil && !errors.Is(err, os.ErrExist) {
		h.Log.Debug("linking a container's log failed", "error", err)
	}
}

func (h *Host) logLink(pod *v1.Pod, container, id string) string {
	name := strings.Join([]string{pod.Name, pod.Namespace, container}, "_")
	if len(name) > 250-len(id)-5 {
		name = name[:250-len(id)-5]
	}
	return filepath.Join(h.ContainerLogs, name+"-"+id+".log")
}
