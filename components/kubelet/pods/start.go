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
	err := w.tryContainer(ctx, pod, s, c, kind)
	w.countStart(c, kind, err)
	return err
}

func (w *worker) tryContainer(ctx context.Context, pod *v1.Pod, s podstate.Start, c *v1.Container, kind podstate.Kind) error {
	fail := func(reason, message string, retryAt time.Time) error {
		if ctx.Err() == nil {
			w.update(func() {
				slot := w.slots[s.Name]
				slot.Waiting = &v1.ContainerStateWaiting{Reason: reason, Message: message}
				slot.RetryAt = retryAt
				w.slots[s.Name] = slot
			})
		}
		return &startFailure{reason, message}
	}
	w.mu.Lock()
	box := w.obs.Sandbox()
	ips := w.ips()
	volumes := w.volumes
	w.mu.Unlock()
	if box == nil {
		return errors.New("no sandbox")
	}
	sandbox, err := w.host.sandboxConfig(pod, box.Attempt)
	if err != nil {
		return fail(createContainerConfigError, err.Error(), time.Now().Add(retryStart))
	}
	image, err := w.ensureImage(ctx, pod, c, sandbox, volumes)
	if cri.IsGone(err) {
		return err
	}
	if err != nil {
		var ie *images.Error
		if !errors.As(err, &ie) {
			return err
		}
		w.host.event(pod, s.Name, true, "Failed", "Error: "+ie.Reason)
		retry := ie.RetryAt
		if retry.IsZero() {
			retry = time.Now().Add(5 * time.Minute)
		}
		return fail(ie.Reason, ie.Message, retry)
	}
	in := containerInput{container: c, attempt: s.Attempt, image: image, volumes: volumes, ips: ips}
	if kind == podstate.Ephemeral {
		in.target = w.targetOf(pod, s.Name)
	}
	cfg, err := w.host.containerConfig(ctx, pod, in)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		msg := apiText(err)
		w.host.event(pod, s.Name, true, "Failed", "Error: "+msg)
		return fail(createContainerConfigError, msg, time.Now().Add(retryStart))
	}
	if err := w.host.ruled(ctx, pod, ips); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		w.host.event(pod, s.Name, true, "Failed", "Error: "+err.Error())
		return fail(createContainerError, err.Error(), time.Now().Add(retryStart))
	}
	call, cancel := carriedThrough(ctx)
	defer cancel()
	if s.Stale != "" {
		if err := w.dropStale(call, pod, s); err != nil {
			return err
		}
	}
	created, err := w.host.CRI.Runtime.CreateContainer(call, &runtimeapi.CreateContainerRequest{
		PodSandboxId: box.ID, Config: cfg, SandboxConfig: sandbox,
	})
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if cri.IsGone(err) {
			return err
		}
		// It may be there nevertheless, if the runtime took too long.
		w.update(func() { w.dirty = true })
		w.host.event(pod, s.Name, true, "Failed", "Error: "+cri.Message(err))
		return fail(createContainerError, cri.Message(err), time.Now().Add(retryStart))
	}
	w.host.event(pod, s.Name, false, "Created", "Container created")
	w.mu.Lock()
	slot := w.slots[s.Name]
	slot.RetryAt = time.Time{}
	w.slots[s.Name] = slot
	hook := c.Lifecycle != nil && c.Lifecycle.PostStart != nil && kind != podstate.Ephemeral
	if hook {
		w.hooks[created.ContainerId] = true
	}
	w.mu.Unlock()
	id := created.ContainerId
	_, startErr := w.host.CRI.Runtime.StartContainer(call, &runtimeapi.StartContainerRequest{ContainerId: id})
	if startErr == nil {
		w.host.event(pod, s.Name, false, "Started", "Container started")
		if w.host.Started != nil {
			w.host.Started(call, pod, s.Name, id, cfg)
		}
	}
	if err := w.learn(ctx, pod, s, id, box.ID); err != nil {
		// Nobody knows whether it runs; should it, its hook is lost.
		w.update(func() { delete(w.hooks, id) })
		return err
	}
	if startErr != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if cri.IsGone(startErr) {
			// The runtime is there again and knows what came of it.
			w.update(func() { delete(w.hooks, id) })
			return startErr
		}
		w.host.event(pod, s.Name, true, "Failed", "Error: "+cri.Message(startErr))
		w.mu.Lock()
		delete(w.hooks, id)
		st := w.obs.ByID(id)
		exited := st != nil && st.State == podstate.Exited
		w.mu.Unlock()
		retry := time.Now().Add(retryStart)
		if exited {
			// It counts as an exit; the back-off of restarts takes over.
			retry = time.Time{}
		}
		return fail(runContainerError, cri.Message(startErr), retry)
	}
	w.update(func() {
		slot := w.slots[s.Name]
		slot.Waiting, slot.ForceRestart = nil, ""
		w.slots[s.Name] = slot
	})
	w.host.linkLog(pod, s.Name, id, s.Attempt)
	if hook {
		return w.postStart(ctx, pod, c, id, fail)
	}
	return nil
}

// ruledWithin bounds how long a container waits for its pod's network to be ruled.
const ruledWithin = 30 * time.Second

// ruled returns once what rules the pod's network holds for its addresses.
func (h *Host) ruled(ctx context.Context, pod *v1.Pod, ips []string) error {
	if h.Network == nil || pod.Spec.HostNetwork {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ruledWithin)
	defer cancel()
	return h.Network(ctx, pod, ips)
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

func (w *worker) postStart(ctx context.Context, pod *v1.Pod, c *v1.Container, id string, fail func(string, string, time.Time) error) error {
	w.mu.Lock()
	ip := w.podIP()
	w.mu.Unlock()
	err := w.host.Prober.Hook(ctx, probe.Target{Pod: pod, Container: c, ContainerID: id, PodIP: ip, Warn: w.host.warns(pod)}, c.Lifecycle.PostStart)
	w.update(func() { delete(w.hooks, id) })
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	w.log.Info("a postStart hook failed", "container", c.Name, "error", err)
	w.host.event(pod, c.Name, true, "FailedPostStartHook", "PostStartHook failed")
	w.mu.Lock()
	w.startKill(ctx, id, "FailedPostStartHook", w.killGrace(id))
	k := w.kills[id]
	w.mu.Unlock()
	if k != nil {
		select {
		case <-k.done:
		case <-ctx.Done():
		}
	}
	return fail(postStartHookError, err.Error(), time.Time{})
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
			if w.host.Providers.Accounts(image) {
				account, err := w.host.Providers.Account(ctx, pod)
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
			list := append(images.Auths(image, secrets), images.NodeAuths(image, w.host.DockerConfigs)...)
			for _, c := range w.host.Providers.For(ctx, pod, image) {
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
		return w.host.Puller.Ensure(ctx, images.Request{
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
