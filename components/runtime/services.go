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

// background runs the goroutines that watch processes and logs.
type background struct {
	// quit is closed when Run returns.
	quit chan struct{}

	once       sync.Once
	goroutines sync.WaitGroup
}

func newBackground() *background { return &background{quit: make(chan struct{})} }

// Go runs f in a goroutine. f must return soon after quit is closed.
func (b *background) Go(f func()) { b.goroutines.Go(f) }

// quitNow closes quit. It may be called repeatedly.
func (b *background) quitNow() { b.once.Do(func() { close(b.quit) }) }

// services are the parts of a running runtime.
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

// compose creates the services.
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

// stop stops all goroutines that watch sandboxes and containers and waits for them.
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

// unimplemented rejects the calls that no service implements. It is a separate type so that the
// services take precedence when criService embeds it.
type unimplemented struct {
	runtimeapi.UnimplementedRuntimeServiceServer
}

// criService is the CRI runtime service, composed of the services for its topics.
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

// cri returns the CRI runtime service.
func (s *services) cri(streams *streamService) runtimeapi.RuntimeServiceServer {
	return criService{
		nodeService: s.node, sandboxService: s.sandboxes, containerService: s.containers, streamService: streams,
		statsService:   &statsService{host: s.host, inventory: s.inventory, network: s.network.builtin},
		metricsService: &metricsService{host: s.host, inventory: s.inventory, network: s.network.builtin},
		eventService:   s.events,
	}
}

// importService implements importpb.Server.
type importService struct {
	*imageService
	// upgrade receives the command of the program that should replace this one.
	upgrade chan<- []string
}

// Upgrade replaces this program by the one that argv starts.
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
