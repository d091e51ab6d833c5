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
	"hyperkube/components/kubelet/pod/images"
	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/components/kubelet/pod/probe"
	"hyperkube/components/kubelet/pod/volume"
)

// createContainerConfigError and the other constants are the reasons of containers in the state Waiting whose
// creation, start or postStart hook has failed, as in upstream.
const (
	createContainerConfigError = "CreateContainerConfigError"
	createContainerError       = "CreateContainerError"
	runContainerError          = "RunContainerError"
	postStartHookError         = "PostStartHookError"
)

// startRetryInterval is the delay before the creation of a container is retried, unless a change triggers
// it earlier.
const startRetryInterval = 10 * time.Second

// startContainer pulls the image, creates and starts one container, and runs its postStart hook. If that fails, it
// records why the container waits and when the start is retried, except if ctx is done or the runtime is
// unavailable: then the whole operation is repeated later.
func (w *starter) startContainer(ctx context.Context, s podstate.Start) error {
	c, kind := podstate.Find(w.pod, s.Name)
	if c == nil {
		return fmt.Errorf("no container %s", s.Name)
	}
	err := (&attempt{starter: w, start: s, container: c, kind: kind}).run(ctx)
	w.countStart(c, kind, err)
	return err
}

// attempt is one attempt to create and start a container. Its methods are the steps. They return nil, a
// startFailure, or an error that is not related to the container: that of the context, or that the runtime is
// unavailable.
type attempt struct {
	*starter
	start     podstate.Start
	container *v1.Container
	kind      podstate.Kind
}

// run creates the container, unless an earlier attempt has created it without starting it, starts it when the pod's
// network policies are in force, and runs the postStart hook. Its errors are those described for attempt.
func (a *attempt) run(ctx context.Context) error {
	a.mu.Lock()
	box := a.machine.Containers.Observed.Sandbox()
	ips := a.ips()
	volumes := a.volumes.byName
	a.mu.Unlock()
	if box == nil {
		return errors.New("no sandbox exists")
	}
	id, cfg := a.start.Created, &runtimeapi.ContainerConfig{}
	var err error
	if id == "" {
		id, cfg, err = a.createContainer(ctx, box, ips, volumes)
	} else if err = a.host.waitForPolicies(ctx, a.pod, ips); err != nil {
		err = a.failWithEvent(ctx, createContainerError, err.Error())
	}
	if err != nil {
		return err
	}
	hook := a.container.Lifecycle != nil && a.container.Lifecycle.PostStart != nil && a.kind != podstate.Ephemeral
	a.mu.Lock()
	a.machine.Containers.Starting(a.start.Name, id, hook)
	a.mu.Unlock()
	ended, err := a.startCreated(ctx, id, box.ID, cfg)
	if err != nil {
		return err
	}
	a.update(func() {
		a.machine.Containers.Started(a.start.Name)
		if ended {
			a.machine.Containers.HookFinished(id)
		}
	})
	a.host.logs.linkLog(a.pod, a.start.Name, id, a.start.Attempt)
	if hook && !ended {
		return a.postStart(ctx, id)
	}
	return nil
}

// createContainer pulls the images, removes a stale container of the same attempt, and creates the container
// in the sandbox box when the pod's network policies are in force. ips are the pod's addresses, and volumes
// its volumes by name. It returns the container's ID and configuration.
func (a *attempt) createContainer(ctx context.Context, box *podstate.Sandbox, ips []string, volumes map[string]volume.Result) (string, *runtimeapi.ContainerConfig, error) {
	sandbox, err := a.host.configs.sandboxConfig(a.pod, box.Attempt)
	if err != nil {
		return "", nil, a.fail(ctx, createContainerConfigError, err.Error(), time.Now().Add(startRetryInterval))
	}
	image, err := a.image(ctx, sandbox, volumes)
	if err != nil {
		return "", nil, err
	}
	in := containerInput{container: a.container, attempt: a.start.Attempt, image: image, volumes: volumes, ips: ips}
	if a.kind == podstate.Ephemeral {
		in.target = a.target()
	}
	cfg, err := a.host.configs.containerConfig(ctx, a.pod, in)
	if err != nil {
		return "", nil, a.failWithEvent(ctx, createContainerConfigError, apiText(err))
	}
	if err := a.host.waitForPolicies(ctx, a.pod, ips); err != nil {
		return "", nil, a.failWithEvent(ctx, createContainerError, err.Error())
	}
	call, cancel := uncancelled(ctx)
	defer cancel()
	if a.start.Stale != "" {
		if err := a.removeStale(call); cri.IsUnavailable(err) {
			return "", nil, err
		} else if err != nil {
			return "", nil, a.failWithEvent(ctx, createContainerError, err.Error())
		}
	}
	id, err := a.create(ctx, call, &runtimeapi.CreateContainerRequest{PodSandboxId: box.ID, Config: cfg, SandboxConfig: sandbox})
	return id, cfg, err
}

// image pulls the container's image and the images of its image volumes if required, and returns the reference
// of the container's image in the runtime. A failure emits an event and is retried when the image's back-off
// ends or, if it has none, after five minutes. An unavailable runtime and errors of the credentials are
// returned unchanged.
func (a *attempt) image(ctx context.Context, sandbox *runtimeapi.PodSandboxConfig, volumes map[string]volume.Result) (string, error) {
	image, err := a.ensureImage(ctx, sandbox, volumes)
	var failed *images.Error
	if err == nil || cri.IsUnavailable(err) || !errors.As(err, &failed) {
		return image, err
	}
	a.host.event(a.pod, a.start.Name, true, "Failed", "Error: "+failed.Reason)
	retry := failed.RetryAt
	if retry.IsZero() {
		retry = time.Now().Add(5 * time.Minute)
	}
	return "", a.fail(ctx, failed.Reason, failed.Message, retry)
}

// create creates the container and returns its ID. ctx is the context of the operation, and call that of the
// runtime call, which completes even if ctx is cancelled. After a failure the worker reads the state from the
// runtime, because the container may exist nevertheless.
func (a *attempt) create(ctx, call context.Context, req *runtimeapi.CreateContainerRequest) (string, error) {
	created, err := a.host.CRI.Runtime.CreateContainer(call, req)
	if err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		if cri.IsUnavailable(err) {
			return "", err
		}
		// The container may exist nevertheless or be created soon, if the runtime timed out or a
		// call of an earlier kubelet is in progress.
		refused := a.failWithEvent(ctx, createContainerError, cri.Message(err))
		a.update(func() {
			a.fresh.all = true
			a.machine.Containers.CreateFailed(a.start.Name)
		})
		return "", refused
	}
	a.host.event(a.pod, a.start.Name, false, "Created", "Container created")
	return created.ContainerId, nil
}

// startCreated starts the created container id in the sandbox and observes its state. The call of the runtime
// completes even if ctx is cancelled. ended is true if a call of an earlier kubelet has started the container
// and it has already exited.
func (a *attempt) startCreated(ctx context.Context, id, sandbox string, cfg *runtimeapi.ContainerConfig) (ended bool, err error) {
	call, cancel := uncancelled(ctx)
	defer cancel()
	_, startErr := a.host.CRI.Runtime.StartContainer(call, &runtimeapi.StartContainerRequest{ContainerId: id})
	if startErr == nil {
		a.started(call, id, cfg)
	}
	if err := a.observeCreated(ctx, id, sandbox); err != nil {
		// It is unknown whether the container runs. If it does, its postStart hook is lost.
		a.update(func() { a.machine.Containers.HookFinished(id) })
		return false, err
	}
	if startErr == nil {
		return false, nil
	}
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	a.mu.Lock()
	st := a.machine.Containers.Observed.ByID(id)
	running := st != nil && st.State == podstate.Running
	exited := st != nil && st.State == podstate.Exited
	ended = exited && !st.StartedAt.IsZero()
	a.mu.Unlock()
	if a.start.Created == id && (running || ended) {
		// A call of an earlier kubelet was in progress and has started the container.
		a.started(call, id, cfg)
		return ended, nil
	}
	a.update(func() { a.machine.Containers.HookFinished(id) })
	if cri.IsUnavailable(startErr) {
		// The next observation shows the result of the call.
		return false, startErr
	}
	a.host.event(a.pod, a.start.Name, true, "Failed", "Error: "+cri.Message(startErr))
	retry := time.Now().Add(startRetryInterval)
	if exited {
		// It counts as an exit, and the restart back-off applies.
		retry = time.Time{}
	}
	return false, a.fail(ctx, runContainerError, cri.Message(startErr), retry)
}

// started emits the Started event of the container id and notifies the ResourceManager. cfg is the
// configuration that the container was created from.
func (a *attempt) started(ctx context.Context, id string, cfg *runtimeapi.ContainerConfig) {
	a.host.event(a.pod, a.start.Name, false, "Started", "Container started")
	if a.host.Resources != nil {
		a.host.Resources.ContainerStarted(ctx, a.pod, a.start.Name, id, cfg)
	}
}

// fail records with which reason and message the container waits, and that its start is not retried before retryAt.
// The zero time means that only the restart back-off applies. Nothing is recorded if ctx is done. It returns a
// startFailure.
func (a *attempt) fail(ctx context.Context, reason, message string, retryAt time.Time) error {
	if ctx.Err() == nil {
		a.update(func() {
			a.machine.Containers.Failed(a.start.Name, reason, message, retryAt)
		})
	}
	return &startFailure{reason, message}
}

// failWithEvent emits a Warning event with the reason and message, and records the failure like fail, with a retry
// after startRetryInterval. If ctx is done it does neither and returns ctx's error, because the failure is not
// related to the container then.
func (a *attempt) failWithEvent(ctx context.Context, reason, message string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	a.host.event(a.pod, a.start.Name, true, "Failed", "Error: "+message)
	return a.fail(ctx, reason, message, time.Now().Add(startRetryInterval))
}

// policyTimeout is how long the start of a container waits for its pod's network policies to be in force.
// After that, the start fails and is retried.
const policyTimeout = 30 * time.Second

// waitForPolicies returns nil when the pod's network policies are in force for its addresses ips, or if the policies are
// unknown because the API server does not respond: the containers then start without them. It returns an error after
// policyTimeout. It does not wait for pods on the host network, or if the node does not enforce network policies.
func (h *host) waitForPolicies(ctx context.Context, pod *v1.Pod, ips []string) error {
	if h.Policies == nil || pod.Spec.HostNetwork {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, policyTimeout)
	defer cancel()
	return h.Policies.Expect(ctx, pod, ips)
}

// removeStale removes a container that was created but never started, so that it can be created again
// with the same attempt number.
func (a *attempt) removeStale(ctx context.Context) error {
	if _, err := a.host.CRI.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: a.start.Stale}); err != nil && !cri.IsNotFound(err) {
		return fmt.Errorf("removing a container that was never started: %w", err)
	}
	a.host.logs.unlinkLog(a.pod, a.start.Name, a.start.Stale)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.machine.Containers.Forget(a.start.Stale)
	return nil
}

// observeCreated adds the container id, which was just created in the sandbox, to the observed state of the pod.
// The restart back-off that was computed for this start is stored together with it: earlier, the start would be
// attributed to the previous container of the same name. If the runtime does not return its state, the worker reads
// the state of the whole pod in its next step.
func (a *attempt) observeCreated(ctx context.Context, id, sandbox string) error {
	st, err := a.host.CRI.Container(ctx, id)
	if err != nil {
		a.update(func() { a.fresh.all = true })
		return err
	}
	st.SandboxID = sandbox
	a.host.logs.fillMessage(a.pod, &st, nil)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.machine.Containers.Created(st, a.start.Crash)
	return nil
}

// postStart runs the postStart hook of the started container. If the hook fails, it stops the container, waits
// until it has exited, and returns a startFailure. If ctx is done, it returns the error of ctx instead and
// stops nothing.
func (a *attempt) postStart(ctx context.Context, id string) error {
	c := a.container
	a.mu.Lock()
	ip := a.podIP()
	a.mu.Unlock()
	err := a.host.Prober.Hook(ctx, probe.Target{Pod: a.pod, Container: c, ContainerID: id, PodIP: ip, Warn: a.host.podWarner(a.pod)}, c.Lifecycle.PostStart)
	a.update(func() { a.machine.Containers.HookFinished(id) })
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	a.log.Info("postStart hook of container failed; the container is stopped and restarted according to the restart policy", "container", c.Name, "containerID", id, "err", err)
	a.host.event(a.pod, c.Name, true, "FailedPostStartHook", "PostStartHook failed")
	a.mu.Lock()
	stop := a.machine.Stop(id, "FailedPostStartHook")
	a.execute(ctx, &stop)
	s := a.stops[id]
	a.mu.Unlock()
	if s != nil {
		select {
		case <-s.done:
		case <-ctx.Done():
		}
	}
	return a.fail(ctx, postStartHookError, err.Error(), time.Time{})
}

// target returns the ID of the container whose process namespace an ephemeral container shares
// (targetContainerName), or "" if it names none or that container was not created yet.
func (a *attempt) target() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.pod.Spec.EphemeralContainers {
		e := &a.pod.Spec.EphemeralContainers[i]
		if e.Name == a.start.Name && e.TargetContainerName != "" {
			if st := a.machine.Containers.Observed.Latest(e.TargetContainerName); st != nil {
				return st.ID
			}
		}
	}
	return ""
}

// ensureImage pulls the container's image and the images of its image volumes if their pull policies require
// it; the default is IfNotPresent. It returns the reference of the container's image in the runtime. sandbox is
// the configuration of the pod's sandbox, and volumes are the pod's volumes by name. A missing pull secret only
// causes an event.
func (a *attempt) ensureImage(ctx context.Context, sandbox *runtimeapi.PodSandboxConfig, volumes map[string]volume.Result) (string, error) {
	pod, c := a.pod, a.container
	var secrets []*v1.Secret
	read := sync.OnceFunc(func() {
		for _, ref := range pod.Spec.ImagePullSecrets {
			s, err := a.host.Objects.Secret(ctx, pod.Namespace, ref.Name)
			if err != nil {
				a.host.event(pod, "", true, "FailedToRetrieveImagePullSecret",
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
			if a.host.Images.Providers.UsesServiceAccounts(image) {
				account, err := a.host.Images.Providers.Account(ctx, pod)
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
			list := append(images.Auths(image, secrets), images.NodeAuths(image, a.host.Images.DockerConfigs)...)
			for _, c := range a.host.Images.Providers.For(ctx, pod, image) {
				one := images.Credential{Auth: c.Auth}
				if c.Account != nil {
					one.Account = pullAccount(c.Account)
				}
				list = append(list, one)
			}
			return list, nil
		}
		begin, end := a.pulling()
		defer end()
		return a.host.Images.Puller.Ensure(ctx, images.Request{
			Pod: pod, Container: c.Name, Image: image, Policy: policy, PodCredentials: own, AllCredentials: all, Sandbox: sandbox,
			Event: func(warning bool, reason, message string) { a.host.event(pod, c.Name, warning, reason, message) },
			// A pull may take long, so the status is updated before.
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

// pullAccount identifies a ServiceAccount in the record of pulled images.
func pullAccount(a *v1.ServiceAccount) *kubeletv1beta1.ImagePullServiceAccount {
	return &kubeletv1beta1.ImagePullServiceAccount{UID: string(a.UID), Namespace: a.Namespace, Name: a.Name}
}

// linkLog creates the link by which log collectors find the log of the container id. attempt is the attempt number
// of the container, which is part of the name of its log file. An error is only logged, because containers run
// without links.
func (l *logFiles) linkLog(pod *v1.Pod, container, id string, attempt uint32) {
	if l.Containers == "" {
		return
	}
	if err := os.MkdirAll(l.Containers, 0o755); err != nil {
		l.log.Debug("creating directory for links to container logs failed; log collectors do not find the log of this container, no retry for it, creating the directory again for the next container", "directory", l.Containers, "err", err)
		return
	}
	target := filepath.Join(l.Dir(pod), container, fmt.Sprintf("%d.log", attempt))
	if err := os.Symlink(target, l.logLink(pod, container, id)); err != nil && !errors.Is(err, os.ErrExist) {
		l.log.Debug("creating link to container log failed; log collectors do not find the log, no retry", "pod", pod.Namespace+"/"+pod.Name, "container", container, "containerID", id, "err", err)
	}
}

// logLink returns the path of the link to the log of the container id. The name is truncated to the maximum
// length of a file name.
func (l *logFiles) logLink(pod *v1.Pod, container, id string) string {
	name := strings.Join([]string{pod.Name, pod.Namespace, container}, "_")
	if len(name) > 250-len(id)-5 {
		name = name[:250-len(id)-5]
	}
	return filepath.Join(l.Containers, name+"-"+id+".log")
}
