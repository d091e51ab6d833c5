//go:build cgo

package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/cni"
	"hyperkube/components/runtime/container"
	"hyperkube/components/runtime/sandbox"
	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/host/process"
	"hyperkube/internal/pod/podnet"
)

// sandboxState is a sandbox that this process manages.
type sandboxState struct {
	id string
	// lifecycleMu is locked while the sandbox is created, stopped or removed.
	lifecycleMu sync.Mutex
	// keep is held while the files that its process keeps are changed.
	keep sync.Mutex

	mu     sync.Mutex // guards the fields below
	record sandboxRecord
	// stopping is true while the sandbox is being stopped. No container may be started then.
	stopping bool
	cpu      cpuSample
	// handle is its process, or nil. It is set before the sandbox is visible to other goroutines.
	handle *process.Handle
}

func (s *sandboxState) get() sandboxRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record
}

// setStopping marks the sandbox as being stopped, or clears the mark if stopping has failed.
func (s *sandboxState) setStopping(yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = yes
}

// acceptsContainers reports whether containers may be started in the sandbox.
func (s *sandboxState) acceptsContainers() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record.Phase == phaseRunning && !s.stopping
}

func (r *Runtime) sandboxDir(id string) string { return r.path("sandboxes", id) }

// changeSandbox changes the record, on disk first.
func (r *Runtime) changeSandbox(s *sandboxState, f func(*sandboxRecord)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.record
	f(&next)
	if err := save(r.sandboxDir(next.ID), &next); err != nil {
		return err
	}
	s.record = next
	return nil
}

// recordSandboxExit updates the record after the sandbox has terminated. If the record cannot be written,
// for example because the disk is full, it is updated in memory only, so that the sandbox can be
// removed. After a restart, the runtime detects the termination again.
func (r *Runtime) recordSandboxExit(s *sandboxState, f func(*sandboxRecord)) {
	if err := r.changeSandbox(s, f); err != nil {
		if !errors.Is(err, os.ErrNotExist) { // it was removed in the meantime
			r.log.Error("recording sandbox termination failed", "sandbox", s.id, "err", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		f(&s.record)
	}
}

func sandboxName(m *runtimeapi.PodSandboxMetadata) string {
	return strings.Join([]string{m.GetName(), m.GetNamespace(), m.GetUid(), fmt.Sprint(m.GetAttempt())}, "_")
}

// RunPodSandbox creates a sandbox: namespaces, files and network.
func (r *Runtime) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	config := req.GetConfig()
	if config.GetMetadata().GetName() == "" {
		return nil, errors.New("sandbox metadata has no name")
	}
	if h := req.GetRuntimeHandler(); r.engines[h] == nil {
		return nil, fmt.Errorf("failed to get sandbox runtime: no runtime for %q is configured", h)
	}
	if user, err := userNS(config); err != nil {
		return nil, err
	} else if user != nil && !userNamespaces() {
		return nil, errors.New("can't set `spec.hostUsers: false`, runtime does not support user namespaces")
	}
	if err := sandbox.CheckSysctls(config.GetLinux().GetSysctls(), hostNetwork(config), hostIPC(config)); err != nil {
		return nil, err
	}
	var external *cni.Network
	if !hostNetwork(config) {
		var err error
		if external, err = r.cniNetwork(); err == nil && external == nil {
			err = r.ensureBuiltinNetwork(ctx)
		}
		if err != nil {
			return nil, fmt.Errorf("failed to setup network for sandbox: %w", err)
		}
	}
	id, name := newID(), sandboxName(config.GetMetadata())
	if made, err := r.reserve(ctx, "sandbox", name, id, req); err != nil {
		return nil, err
	} else if made != "" {
		return &runtimeapi.RunPodSandboxResponse{PodSandboxId: made}, nil
	}
	labels, err := r.selinux.Pod(config.GetLinux().GetSecurityContext())
	if err != nil {
		r.release("sandbox", name)
		return nil, err
	}
	s := &sandboxState{id: id, record: sandboxRecord{
		ID: id, Boot: r.boot, Phase: phaseCreating, Created: time.Now().UnixNano(),
		Handler: req.GetRuntimeHandler(), Labels: labels, Config: marshal(config), config: config,
	}}
	s.lifecycleMu.Lock()
	defer s.lifecycleMu.Unlock()
	r.runner.Prestart() // containers will follow
	if err := r.setUpSandbox(ctx, s, external); err != nil {
		// Clean up even if the client has disconnected.
		if undoErr := r.tearDownSandbox(context.WithoutCancel(ctx), s); undoErr != nil {
			r.log.Warn("removing failed sandbox failed", "sandbox", id, "err", undoErr)
		}
		_ = os.RemoveAll(r.sandboxDir(id))
		r.selinux.Release(labels)
		r.release("sandbox", name)
		return nil, err
	}
	r.mu.Lock()
	r.sandboxes[id] = s
	r.markCreated("sandbox", name)
	r.mu.Unlock()
	r.watchSandbox(s)
	r.emit(id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, s)
	r.emit(id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, s)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// setUpSandbox creates the resources of a sandbox. external is the CNI network that connects it, or
// nil for the built-in network.
func (r *Runtime) setUpSandbox(ctx context.Context, s *sandboxState, external *cni.Network) error {
	id, config, labels := s.id, s.get().config, s.get().Labels
	dir := r.sandboxDir(id)
	if err := os.Mkdir(dir, 0o711); err != nil {
		return fmt.Errorf("creating the sandbox's directory: %w", err)
	}
	if err := r.changeSandbox(s, func(*sandboxRecord) {}); err != nil {
		return err
	}
	shared := hostNetwork(config)
	user, err := userNS(config)
	if err != nil {
		return err
	}
	hostname := config.GetHostname()
	var dns *sandbox.DNS
	if d := config.GetDnsConfig(); d != nil {
		dns = &sandbox.DNS{Servers: d.GetServers(), Searches: d.GetSearches(), Options: d.GetOptions()}
	}
	if err := sandbox.WriteFiles(dir, hostname, shared, dns); err != nil {
		return err
	}
	if err := r.labelFiles(id, labels); err != nil {
		return err
	}
	if !hostIPC(config) {
		if err := sandbox.MountSHM(r.shm(id), user, labels.ForMount()); err != nil {
			return err
		}
	}
	if logDir := config.GetLogDirectory(); logDir != "" {
		if err := os.MkdirAll(logDir, 0o755); err != nil {
			return fmt.Errorf("creating the pod's log directory: %w", err)
		}
	}
	cg := r.sandboxCgroup(config, id)
	if err := r.cgroups.Create(cg, cgroup.Resources{}); err != nil {
		return err
	}
	if !shared && external == nil {
		if _, err := r.network.Allocate(id); err != nil {
			return err
		}
	}
	h, err := sandbox.Start(sandbox.Options{
		ID: id, Program: r.pauseProgram(), EmptyDir: r.state("empty"),
		HostNetwork: shared, HostIPC: hostIPC(config), OOMScoreAdj: -998,
		HostPID:  namespaceOptions(config).GetPid() == runtimeapi.NamespaceMode_NODE,
		SharePID: namespaceOptions(config).GetPid() == runtimeapi.NamespaceMode_POD,
		UserNS:   user, Label: labels.ForProcess(),
	})
	if err != nil {
		return err
	}
	s.handle = h
	if err := r.cgroups.AddProcess(cg, h.PID()); err != nil {
		return err
	}
	if err := r.connect(ctx, s, hostname, external); err != nil {
		return err
	}
	return r.changeSandbox(s, func(rec *sandboxRecord) {
		rec.Process = processID{h.PID(), h.Start()}
		rec.Phase = phaseRunning
		for _, addr := range r.network.Addresses(id) {
			rec.IPs = append(rec.IPs, addr.String())
		}
	})
}

// connect configures the sandbox's namespaces and connects it to the network.
func (r *Runtime) connect(ctx context.Context, s *sandboxState, hostname string, external *cni.Network) error {
	config := s.get().config
	shared := hostNetwork(config)
	user, err := userNS(config)
	if err != nil {
		return err
	}
	inside := func() error {
		return sandbox.Configure(s.handle, hostname, !shared, !hostIPC(config), user, config.GetLinux().GetSysctls())
	}
	netns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", s.handle.PID()))
	if err != nil {
		return fmt.Errorf("opening the sandbox's network namespace: %w", err)
	}
	defer netns.Close()
	if shared {
		if hostIPC(config) || len(config.GetLinux().GetSysctls()) == 0 {
			return nil
		}
		return podnet.Loopback(netns, inside)
	}
	if external != nil {
		if err := r.attachCNI(ctx, s, external, netns, inside); err != nil {
			return fmt.Errorf("failed to setup network for sandbox %q: %w", s.id, err)
		}
		return nil
	}
	ports, err := portMappings(config.GetPortMappings())
	if err != nil {
		return err
	}
	bandwidth, err := cni.BandwidthOf(config.GetAnnotations())
	if err != nil {
		return fmt.Errorf("failed to setup network for sandbox %q: %w", s.id, err)
	}
	pod := podnet.Pod{ID: s.id, Netns: netns, Ports: ports, Ingress: bandwidth.Ingress, Egress: bandwidth.Egress, Inside: inside}
	if err := r.network.Attach(ctx, pod); err != nil {
		return fmt.Errorf("failed to setup network for sandbox %q: %w", s.id, err)
	}
	return nil
}

func (r *Runtime) shm(id string) string { return r.state("sandboxes", id, "shm") }

// watchSandbox watches the sandbox's process and handles its unexpected exit.
func (r *Runtime) watchSandbox(s *sandboxState) {
	h := s.handle
	if h == nil {
		return
	}
	done := h.Done()
	r.watchers.Go(func() {
		select {
		case <-done:
		case <-r.quit:
			return
		}
		select {
		case <-r.quit: // closing the handle also closes Done
			return
		default:
		}
		was := false
		r.recordSandboxExit(s, func(rec *sandboxRecord) {
			was = rec.Phase == phaseRunning
			rec.Phase = phaseExited
			rec.Process = processID{}
		})
		if was {
			r.emit(s.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, s)
		}
	})
}

// tearDownSandbox releases the resources that setUpSandbox has created, even partially. It is
// idempotent. The directory and the record stay.
func (r *Runtime) tearDownSandbox(ctx context.Context, s *sandboxState) error {
	rec := s.get()
	var errs []error
	switch {
	case hostNetwork(rec.config):
	case len(rec.CNI) > 0:
		errs = append(errs, r.detachCNI(ctx, s))
	default:
		errs = append(errs, r.network.Detach(ctx, rec.ID))
	}
	if s.handle != nil {
		if err := s.handle.Signal(unix.SIGKILL); err == nil {
			<-s.handle.Done()
		}
	}
	errs = append(errs, container.Unmount(r.shm(rec.ID)), os.RemoveAll(r.state("sandboxes", rec.ID)))
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cg := r.sandboxCgroup(rec.config, rec.ID)
	errs = append(errs, r.cgroups.Kill(cg), r.cgroups.Remove(ctx, cg))
	// Release the addresses last, when no process can use them any more.
	errs = append(errs, r.network.Free(rec.ID))
	return errors.Join(errs...)
}

func (r *Runtime) findSandbox(id string) (*sandboxState, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return find("sandbox", r.sandboxes, id)
}

// containersOf returns the containers of a sandbox.
func (r *Runtime) containersOf(sandboxID string) []*containerState {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*containerState
	for _, c := range r.containers {
		if c.sandbox == sandboxID {
			list = append(list, c)
		}
	}
	return list
}

// StopPodSandbox stops a sandbox and its containers. It is not an error if the sandbox does not
// exist or is stopped.
func (r *Runtime) StopPodSandbox(ctx context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	s, err := r.findSandbox(req.GetPodSandboxId())
	if errors.Is(err, errNotFound) {
		return &runtimeapi.StopPodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := r.stopSandbox(ctx, s); err != nil {
		return nil, err
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

func (r *Runtime) stopSandbox(ctx context.Context, s *sandboxState) error {
	s.lifecycleMu.Lock()
	defer s.lifecycleMu.Unlock()
	// Set this before the containers are stopped. Otherwise a container could be started in between
	// and outlive the sandbox.
	s.setStopping(true)
	defer s.setStopping(false)
	for _, c := range r.containersOf(s.id) {
		if err := r.stopContainer(ctx, c, 0); err != nil {
			return fmt.Errorf("failed to stop container %q: %w", c.id, err)
		}
	}
	if err := r.tearDownSandbox(ctx, s); err != nil {
		return fmt.Errorf("failed to stop sandbox %q: %w", s.id, err)
	}
	was := false
	r.recordSandboxExit(s, func(rec *sandboxRecord) {
		was = rec.Phase == phaseRunning
		rec.Phase = phaseExited
		rec.Process = processID{}
		rec.IPs, rec.CNI = nil, nil
	})
	if was {
		r.emit(s.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, s)
	}
	return nil
}

// RemovePodSandbox removes a sandbox and its containers, running or not. It is not an error if the
// sandbox does not exist.
func (r *Runtime) RemovePodSandbox(ctx context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	s, err := r.findSandbox(req.GetPodSandboxId())
	if errors.Is(err, errNotFound) {
		return &runtimeapi.RemovePodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := r.stopSandbox(ctx, s); err != nil {
		return nil, err
	}
	for _, c := range r.containersOf(s.id) {
		if err := r.removeContainer(ctx, c); err != nil {
			return nil, fmt.Errorf("failed to remove container %q: %w", c.id, err)
		}
	}
	s.lifecycleMu.Lock()
	defer s.lifecycleMu.Unlock()
	id := s.id
	if err := os.RemoveAll(r.sandboxDir(id)); err != nil {
		return nil, fmt.Errorf("removing the sandbox's directory: %w", err)
	}
	left, known := r.forgetSandbox(s)
	for ; left != nil; left, known = r.forgetSandbox(s) {
		if err := r.removeContainer(ctx, left); err != nil {
			return nil, fmt.Errorf("failed to remove container %q: %w", left.id, err)
		}
	}
	if s.handle != nil {
		s.handle.Close()
	}
	if known {
		r.emit(id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, nil)
	}
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// forgetSandbox deletes the sandbox from the map and reports whether it was present. If a container
// was created in the meantime, it returns that container and keeps the sandbox, because the
// container would never be removed otherwise.
func (r *Runtime) forgetSandbox(s *sandboxState) (left *containerState, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		if c.sandbox == s.id {
			return c, true
		}
	}
	_, known = r.sandboxes[s.id]
	delete(r.sandboxes, s.id)
	delete(r.names, "sandbox"+sandboxName(s.get().config.GetMetadata()))
	if known {
		r.selinux.Release(s.get().Labels)
	}
	return nil, known
}

// UpdatePodSandboxResources only records the resources, because the kubelet manages the pod's
// cgroup.
func (r *Runtime) UpdatePodSandboxResources(_ context.Context, req *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	s, err := r.findSandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	err = r.changeSandbox(s, func(rec *sandboxRecord) {
		if rec.config.GetLinux() != nil {
			config := cloneSandboxConfig(rec.config)
			config.Linux.Overhead, config.Linux.Resources = req.GetOverhead(), req.GetResources()
			rec.config, rec.Config = config, marshal(config)
		}
	})
	if err != nil {
		return nil, err
	}
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}
