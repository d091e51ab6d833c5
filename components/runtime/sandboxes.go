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
	"hyperkube/internal/cgroup"
	"hyperkube/internal/podnet"
	"hyperkube/internal/process"
)

// sandboxState is a sandbox that this process knows.
type sandboxState struct {
	id string
	// life is held while it is made, stopped or removed.
	life sync.Mutex

	mu     sync.Mutex // guards what follows
	record sandboxRecord
	// stopping: it is being stopped, so that nothing may start in it any more.
	stopping bool
	cpu      cpuSample
	// handle is its process, nil if it has none. Set before the sandbox is
	// known to others.
	handle *process.Handle
}

func (s *sandboxState) get() sandboxRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record
}

// setStopping says that the sandbox is being stopped, or that this did not work out.
func (s *sandboxState) setStopping(yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = yes
}

// takesContainers tells whether containers may be started in the sandbox.
func (s *sandboxState) takesContainers() bool {
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

// endSandbox changes the record to say that the sandbox has ended, even if the
// disk does not take it: what is on a full disk must still be removable. A
// successor finds the end out by itself.
func (r *Runtime) endSandbox(s *sandboxState, f func(*sandboxRecord)) {
	if err := r.changeSandbox(s, f); err != nil {
		if !errors.Is(err, os.ErrNotExist) { // it was removed meanwhile
			r.log.Error("the end of a sandbox cannot be recorded", "sandbox", s.id, "error", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		f(&s.record)
	}
}

func sandboxName(m *runtimeapi.PodSandboxMetadata) string {
	return strings.Join([]string{m.GetName(), m.GetNamespace(), m.GetUid(), fmt.Sprint(m.GetAttempt())}, "_")
}

// RunPodSandbox makes a sandbox: namespaces, files, network.
func (r *Runtime) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	config := req.GetConfig()
	if config.GetMetadata().GetName() == "" {
		return nil, errors.New("the sandbox has no metadata with a name")
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
		if external, err = r.external(); err == nil && external == nil {
			err = r.ownNetwork(ctx)
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
	s.life.Lock()
	defer s.life.Unlock()
	r.runner.Expect() // its containers
	if err := r.makeSandbox(ctx, s, external); err != nil {
		// Taken apart even when the caller is gone.
		if undoErr := r.unmakeSandbox(context.WithoutCancel(ctx), s); undoErr != nil {
			r.log.Warn("a sandbox that failed cannot be removed", "sandbox", id, "error", undoErr)
		}
		_ = os.RemoveAll(r.sandboxDir(id))
		r.selinux.Release(labels)
		r.release("sandbox", name)
		return nil, err
	}
	r.mu.Lock()
	r.sandboxes[id] = s
	r.made("sandbox", name)
	r.mu.Unlock()
	r.followSandbox(s)
	r.emit(id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, s)
	r.emit(id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, s)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// makeSandbox makes what a sandbox is made of. external is the network of the
// plugins that connect it, nil if this project's does.
func (r *Runtime) makeSandbox(ctx context.Context, s *sandboxState, external *cni.Network) error {
	id, config, labels := s.id, s.get().config, s.get().Labels
	dir := r.sandboxDir(id)
	if err := os.Mkdir(dir, 0o711); err != nil {
		return fmt.Errorf("making the sandbox's directory: %w", err)
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
			return fmt.Errorf("making the pod's log directory: %w", err)
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
		ID: id, Program: r.pauseProgram(), Empty: r.state("empty"),
		HostNetwork: shared, HostIPC: hostIPC(config), OOMScoreAdj: -998,
		HostPID:  namespaceOptions(config).GetPid() == runtimeapi.NamespaceMode_NODE,
		SharePID: namespaceOptions(config).GetPid() == runtimeapi.NamespaceMode_POD,
		UserNS:   user, Label: labels.ForProcess(),
	})
	if err != nil {
		return err
	}
	s.handle = h
	if err := r.cgroups.Enter(cg, h.PID()); err != nil {
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

// connect sets up the inside of the sandbox's namespaces, and its network.
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
		if err := r.plugIn(ctx, s, external, netns, inside); err != nil {
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

// followSandbox tells when the sandbox's process ends by itself.
func (r *Runtime) followSandbox(s *sandboxState) {
	h := s.handle
	if h == nil {
		return
	}
	done := h.Done()
	r.watch.Go(func() {
		select {
		case <-done:
		case <-r.quit:
			return
		}
		select {
		case <-r.quit: // closing the handle ends it too
			return
		default:
		}
		was := false
		r.endSandbox(s, func(rec *sandboxRecord) {
			was = rec.Phase == phaseRunning
			rec.Phase = phaseExited
			rec.Process = processID{}
		})
		if was {
			r.emit(s.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, s)
		}
	})
}

// unmakeSandbox takes apart what makeSandbox makes, as far as it came. It can
// be repeated. Folder and record stay.
func (r *Runtime) unmakeSandbox(ctx context.Context, s *sandboxState) error {
	rec := s.get()
	var errs []error
	switch {
	case hostNetwork(rec.config):
	case len(rec.CNI) > 0:
		errs = append(errs, r.unplug(ctx, s))
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
	// Last, when nobody can use the addresses any more.
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

// StopPodSandbox stops a sandbox with all in it. Nothing to stop is no error.
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
	s.life.Lock()
	defer s.life.Unlock()
	// Before its containers are stopped: one that is started behind that would run on
	// in a sandbox that has ended.
	s.setStopping(true)
	defer s.setStopping(false)
	for _, c := range r.containersOf(s.id) {
		if err := r.stopContainer(ctx, c, 0); err != nil {
			return fmt.Errorf("failed to stop container %q: %w", c.id, err)
		}
	}
	if err := r.unmakeSandbox(ctx, s); err != nil {
		return fmt.Errorf("failed to stop sandbox %q: %w", s.id, err)
	}
	was := false
	r.endSandbox(s, func(rec *sandboxRecord) {
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

// RemovePodSandbox removes a sandbox with all in it, stopped or not. Nothing
// to remove is no error.
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
	s.life.Lock()
	defer s.life.Unlock()
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

// forgetSandbox forgets a sandbox, and tells whether it was known, unless a container
// was made in it until now, which it returns: that would never be removed.
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

// UpdatePodSandboxResources takes note: the pod's cgroup is the kubelet's.
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
