//go:build cgo

package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/cni"
	"hyperkube/components/runtime/container"
	"hyperkube/components/runtime/sandbox"
	"hyperkube/internal/host/cgroup"
)

// sandboxService implements the CRI calls that create, stop, remove, update and list pod sandboxes.
type sandboxService struct {
	*host
	inventory  *inventory
	events     *eventService
	engines    *engines
	network    *podNetwork
	containers *containerService
	background *background
}

// RunPodSandbox creates the sandbox of a pod: the pause process that holds its namespaces, the files for /etc, and the
// network. If the same request is already in progress, it waits and returns the same sandbox. After an error,
// everything is undone.
func (ss *sandboxService) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	config := req.GetConfig()
	if config.GetMetadata().GetName() == "" {
		return nil, errors.New("sandbox metadata has no name")
	}
	if h := req.GetRuntimeHandler(); !ss.engines.has(h) {
		return nil, fmt.Errorf("failed to get sandbox runtime: no runtime for %q is configured", h)
	}
	if user, err := userNS(config); err != nil {
		return nil, err
	} else if user != nil {
		if err := checkUserNamespaces(); err != nil {
			return nil, err
		}
	}
	if err := sandbox.CheckSysctls(config.GetLinux().GetSysctls(), hostNetwork(config), hostIPC(config)); err != nil {
		return nil, err
	}
	var external *cni.Network
	if !hostNetwork(config) {
		var err error
		if external, err = ss.network.external(); err == nil && external == nil {
			err = ss.network.ensureBuiltin(ctx)
		}
		if err != nil {
			return nil, fmt.Errorf("failed to setup network for sandbox: %w", err)
		}
	}
	id, name := newID(), sandboxName(config.GetMetadata())
	if made, err := ss.inventory.reserve(ctx, "sandbox", name, id, req); err != nil {
		return nil, err
	} else if made != "" {
		return &runtimeapi.RunPodSandboxResponse{PodSandboxId: made}, nil
	}
	labels, err := ss.selinux.Pod(config.GetLinux().GetSecurityContext())
	if err != nil {
		ss.inventory.release("sandbox", name)
		return nil, err
	}
	s := &sandboxState{id: id, dir: ss.sandboxDir(id), record: sandboxRecord{
		ID: id, Boot: ss.boot, Phase: phaseCreating, Created: time.Now().UnixNano(),
		Handler: req.GetRuntimeHandler(), Labels: labels, Config: marshal(config), config: config,
	}}
	s.lifecycleMu.Lock()
	defer s.lifecycleMu.Unlock()
	ss.engines.builtin.Prestart() // containers will follow
	if err := ss.setUp(ctx, s, external); err != nil {
		// Clean up even if the client has disconnected.
		if undoErr := ss.tearDown(context.WithoutCancel(ctx), s); undoErr != nil {
			ss.log.Warn("cleanup after failed creation of pod sandbox failed; its processes or cgroup may remain until the next reboot, no retry; the kubelet creates another sandbox for the pod", "podSandboxID", id, "err", undoErr)
		}
		_ = os.RemoveAll(ss.sandboxDir(id))
		ss.selinux.Release(labels)
		ss.inventory.release("sandbox", name)
		return nil, err
	}
	ss.inventory.addSandbox(s, name)
	ss.watch(s)
	ss.events.emit(id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, s)
	ss.events.emit(id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, s)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// setUp creates the resources of a new sandbox and records phase running. external is the CNI network that connects it,
// or nil for the built-in network. If it returns an error, the caller must call tearDown.
func (ss *sandboxService) setUp(ctx context.Context, s *sandboxState, external *cni.Network) error {
	id, config, labels := s.id, s.get().config, s.get().Labels
	dir := ss.sandboxDir(id)
	if err := os.Mkdir(dir, 0o711); err != nil {
		return fmt.Errorf("creating the sandbox's directory: %w", err)
	}
	if err := s.change(func(*sandboxRecord) {}); err != nil {
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
	if err := ss.labelFiles(id, labels); err != nil {
		return err
	}
	if !hostIPC(config) {
		if err := sandbox.MountSHM(ss.shm(id), user, labels.ForMount()); err != nil {
			return err
		}
	}
	if logDir := config.GetLogDirectory(); logDir != "" {
		if err := os.MkdirAll(logDir, 0o755); err != nil {
			return fmt.Errorf("creating the pod's log directory: %w", err)
		}
	}
	cg := ss.sandboxCgroup(config, id)
	if err := ss.cgroups.Create(cg, cgroup.Resources{}); err != nil {
		return err
	}
	if !shared && external == nil {
		if err := ss.network.allocate(id); err != nil {
			return err
		}
	}
	h, err := sandbox.Start(sandbox.Options{
		ID: id, Program: ss.pauseProgram(), EmptyDir: ss.state("empty"),
		HostNetwork: shared, HostIPC: hostIPC(config), OOMScoreAdj: -998,
		HostPID:  namespaceOptions(config).GetPid() == runtimeapi.NamespaceMode_NODE,
		SharePID: namespaceOptions(config).GetPid() == runtimeapi.NamespaceMode_POD,
		UserNS:   user, Label: labels.ForProcess(),
	})
	if err != nil {
		return err
	}
	s.handle = h
	if err := ss.cgroups.AddProcess(cg, h.PID()); err != nil {
		return err
	}
	if err := ss.network.connect(ctx, s, hostname, external); err != nil {
		return err
	}
	return s.change(func(rec *sandboxRecord) {
		rec.Process = processID{h.PID(), h.Start()}
		rec.Phase = phaseRunning
		rec.IPs = append(rec.IPs, ss.network.addresses(id)...)
	})
}

// watch waits in the background for the exit of the sandbox's pause process. If the process exits although the sandbox
// was not stopped, the sandbox is recorded as exited, and the kubelet replaces it. It does nothing if there is no
// process.
func (ss *sandboxService) watch(s *sandboxState) {
	h := s.handle
	if h == nil {
		return
	}
	done := h.Done()
	ss.background.Go(func() {
		select {
		case <-done:
		case <-ss.background.quit:
			return
		}
		select {
		case <-ss.background.quit: // closing the handle also closes Done
			return
		default:
		}
		was := false
		s.recordExit(ss.log, func(rec *sandboxRecord) {
			was = rec.Phase == phaseRunning
			rec.Phase = phaseExited
			rec.Process = processID{}
		})
		if was {
			ss.events.emit(s.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, s)
		}
	})
}

// tearDown releases the resources that setUp has created, also if setUp has failed: network, processes, mounts and
// cgroup. It continues after errors and returns all of them. It is idempotent. The sandbox's directory and record stay.
func (ss *sandboxService) tearDown(ctx context.Context, s *sandboxState) error {
	rec := s.get()
	var errs []error
	errs = append(errs, ss.network.disconnect(ctx, s))
	if s.handle != nil {
		if err := s.handle.Signal(unix.SIGKILL); err == nil {
			<-s.handle.Done()
		}
	}
	errs = append(errs, container.Unmount(ss.shm(rec.ID)), os.RemoveAll(ss.state("sandboxes", rec.ID)))
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cg := ss.sandboxCgroup(rec.config, rec.ID)
	errs = append(errs, ss.cgroups.Kill(cg), ss.cgroups.Remove(ctx, cg))
	// Release the addresses last, when no process can use them any more.
	errs = append(errs, ss.network.free(rec.ID))
	return errors.Join(errs...)
}

// StopPodSandbox kills the containers of a sandbox and releases its processes and network. The sandbox stays in the
// inventory until RemovePodSandbox. It is not an error if the sandbox does not exist or is stopped.
func (ss *sandboxService) StopPodSandbox(ctx context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	s, err := ss.inventory.findSandbox(req.GetPodSandboxId())
	if errors.Is(err, errNotFound) {
		return &runtimeapi.StopPodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := ss.stop(ctx, s); err != nil {
		return nil, err
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// stop implements StopPodSandbox for a sandbox. It is idempotent.
func (ss *sandboxService) stop(ctx context.Context, s *sandboxState) error {
	s.lifecycleMu.Lock()
	defer s.lifecycleMu.Unlock()
	// Set this before the containers are stopped. Otherwise a container could be started in between
	// and outlive the sandbox.
	s.setStopping(true)
	defer s.setStopping(false)
	for _, c := range ss.inventory.containersOf(s.id) {
		if err := ss.containers.stop(ctx, c, 0); err != nil {
			return fmt.Errorf("failed to stop container %q: %w", c.id, err)
		}
	}
	if err := ss.tearDown(ctx, s); err != nil {
		return fmt.Errorf("failed to stop sandbox %q: %w", s.id, err)
	}
	was := false
	s.recordExit(ss.log, func(rec *sandboxRecord) {
		was = rec.Phase == phaseRunning
		rec.Phase = phaseExited
		rec.Process = processID{}
		rec.IPs, rec.CNI = nil, nil
	})
	if was {
		ss.events.emit(s.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, s)
	}
	return nil
}

// RemovePodSandbox removes a sandbox and its containers, running or not. It is not an error if the
// sandbox does not exist.
func (ss *sandboxService) RemovePodSandbox(ctx context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	s, err := ss.inventory.findSandbox(req.GetPodSandboxId())
	if errors.Is(err, errNotFound) {
		return &runtimeapi.RemovePodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := ss.stop(ctx, s); err != nil {
		return nil, err
	}
	for _, c := range ss.inventory.containersOf(s.id) {
		if err := ss.containers.remove(ctx, c); err != nil {
			return nil, fmt.Errorf("failed to remove container %q: %w", c.id, err)
		}
	}
	s.lifecycleMu.Lock()
	defer s.lifecycleMu.Unlock()
	id := s.id
	if err := os.RemoveAll(ss.sandboxDir(id)); err != nil {
		return nil, fmt.Errorf("removing the sandbox's directory: %w", err)
	}
	left, known := ss.inventory.forgetSandbox(s)
	for ; left != nil; left, known = ss.inventory.forgetSandbox(s) {
		if err := ss.containers.remove(ctx, left); err != nil {
			return nil, fmt.Errorf("failed to remove container %q: %w", left.id, err)
		}
	}
	if s.handle != nil {
		s.handle.Close()
	}
	if known {
		ss.selinux.Release(s.get().Labels)
		ss.events.emit(id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, nil)
	}
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// UpdatePodSandboxResources stores the pod's new resources in the sandbox's record. It does not change cgroups, because
// the kubelet manages the pod's cgroup.
func (ss *sandboxService) UpdatePodSandboxResources(_ context.Context, req *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	s, err := ss.inventory.findSandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	err = s.change(func(rec *sandboxRecord) {
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
