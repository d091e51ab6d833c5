//go:build cgo

package runtime

import (
	"context"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// background runs the background goroutines of a runtime, such as those that wait for processes or copy output, and
// stops them when the runtime stops.
type background struct {
	// quit is closed when Run returns.
	quit chan struct{}

	once       sync.Once
	goroutines sync.WaitGroup
}

func newBackground() *background { return &background{quit: make(chan struct{})} }

// Go runs f in a goroutine that services.stop waits for. f must return soon after quit is closed.
func (b *background) Go(f func()) { b.goroutines.Go(f) }

// quitNow closes quit, which asks all background goroutines to return. It may be called repeatedly.
func (b *background) quitNow() { b.once.Do(func() { close(b.quit) }) }

// services are the services of a runtime that is running, and the state that they share.
type services struct {
	*host
	inventory  *inventory
	background *background
	network    *podNetwork
	events     *eventService
	containers *containerService
	sandboxes  *sandboxService
	images     *imageService
	node       *nodeService
}

// compose creates the services for one call of Run. It starts nothing.
func (r *Runtime) compose(inv *inventory, network *podNetwork) *services {
	s := &services{host: r.host, inventory: inv, background: newBackground(), network: network}
	s.events = &eventService{inventory: inv, background: s.background}
	s.containers = &containerService{
		host: r.host, inventory: inv, events: s.events, engines: r.engines, images: r.images, background: s.background,
		specs: &specBuilder{host: r.host, inventory: inv, images: r.images, apparmor: r.apparmor, cdiDirs: r.cfg.CDIDirs, kubelet: r.cfg.Kubelet},
		stdio: &stdioFiles{host: r.host, inventory: inv, background: s.background},
	}
	s.sandboxes = &sandboxService{
		host: r.host, inventory: inv, events: s.events, engines: r.engines, network: network, containers: s.containers, background: s.background,
	}
	s.images = &imageService{
		host: r.host, images: r.images, inventory: inv, registries: r.cfg.Registries, builtIn: r.cfg.BuiltIn, builtInImage: r.cfg.BuiltInImage,
	}
	s.node = &nodeService{host: r.host, version: reportedVersion(&r.cfg), engines: r.engines, network: network}
	return s
}

// stop stops all background goroutines and waits for them. It closes the handles and streams of sandboxes and
// containers, which keep running.
func (s *services) stop() {
	s.background.quitNow()
	for _, sandbox := range s.inventory.allSandboxes() {
		if sandbox.handle != nil {
			sandbox.handle.Close()
		}
	}
	for _, c := range s.inventory.allContainers() {
		c.closeFiles()
	}
	s.background.goroutines.Wait()
}

// unimplemented rejects CRI calls that no service implements. It is a separate type so that its methods are embedded
// one level deeper in criService than those of the services, which therefore take precedence.
type unimplemented struct {
	runtimeapi.UnimplementedRuntimeServiceServer
}

// criService implements the CRI runtime service. Each embedded service contributes the calls for its topic.
type criService struct {
	unimplemented
	*nodeService
	*sandboxService
	*containerService
	*streamService
	*statsService
	*metricsService
	*eventService
}

// cri returns the CRI runtime service that the gRPC server serves. The image service is registered separately.
func (s *services) cri(streams *streamService) runtimeapi.RuntimeServiceServer {
	return criService{
		nodeService: s.node, sandboxService: s.sandboxes, containerService: s.containers, streamService: streams,
		statsService:   &statsService{host: s.host, inventory: s.inventory, network: s.network.builtin},
		metricsService: &metricsService{host: s.host, inventory: s.inventory, network: s.network.builtin},
		eventService:   s.events,
	}
}

// importService serves the calls of package importpb, which are not part of CRI: importing images from an archive,
// pulling images with progress, and upgrading the runtime.
type importService struct {
	*imageService
	// upgrade receives the command of the program that should replace this one.
	upgrade chan<- []string
}

// Upgrade requests that this process executes the command argv, a new version of the runtime. It validates argv[0],
// which must be an absolute path of an executable file, and returns before the execution. It returns an error if
// another upgrade is in progress.
func (s importService) Upgrade(_ context.Context, argv []string) error {
	if len(argv) == 0 || !filepath.IsAbs(argv[0]) {
		return status.Error(codes.InvalidArgument, "the program must be an absolute path")
	}
	if err := unix.Access(argv[0], unix.X_OK); err != nil {
		return status.Errorf(codes.InvalidArgument, "%s cannot be executed: %v", argv[0], err)
	}
	select {
	case s.upgrade <- argv:
		return nil
	default:
		return status.Error(codes.FailedPrecondition, "an upgrade is in progress")
	}
}
