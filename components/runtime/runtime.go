//go:build cgo

package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/container"
	"hyperkube/components/runtime/images"
	"hyperkube/components/runtime/importpb"
	"hyperkube/components/runtime/sandbox"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/layout"
)

// maxMessage is the maximum size of a CRI message in bytes, as in other runtimes.
const maxMessage = 16 << 20

// Runtime is a container runtime. It consists of services that implement the calls of CRI. Each service has its own
// state and locks; all share the inventory of sandboxes and containers.
type Runtime struct {
	host     *host
	cfg      Config
	images   *images.Store
	engines  *engines
	apparmor container.AppArmor

	ready chan struct{}
	// upgrade receives the command of the program that should replace this one.
	upgrade chan []string
}

// New validates cfg, creates the runtime's directories and opens the image store. The caller must call Run.
func New(cfg Config) (*Runtime, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	// Paths of containers' roots must match those in the mount table.
	for _, dir := range []*string{&cfg.Root, &cfg.State} {
		real, err := layout.Resolve(*dir)
		if err != nil {
			return nil, err
		}
		*dir = real
	}
	h, err := newHost(&cfg)
	if err != nil {
		return nil, err
	}
	r := &Runtime{host: h, cfg: cfg, engines: newEngines(h, cfg.Handlers), ready: make(chan struct{}), upgrade: make(chan []string, 1)}
	if r.images, err = images.Open(h.path("images"), h.log); err != nil {
		return nil, err
	}
	if err := sandbox.Install(h.pauseProgram()); err != nil {
		return nil, err
	}
	// New files inherit the label of their directory. Containers must be able to read the label of
	// layers, because mapped files are checked against the lower file of the overlay.
	for _, path := range []string{h.pauseProgram(), h.path("images", "tmp"), h.path("images", "layers")} {
		if err := h.selinux.LabelForAll(path); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Ready returns a channel that is closed when the runtime serves CRI on its socket.
func (r *Runtime) Ready() <-chan struct{} { return r.ready }

// Run loads the default AppArmor profile, takes over the containers of a previous runtime process and serves CRI until
// ctx is done. Containers keep running afterwards. It returns an *UpgradeError when an upgrade was requested. Call it
// once.
func (r *Runtime) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	journal, err := r.openJournal()
	defer func() { _ = journal.Close() }()
	if err != nil {
		return err
	}
	if err := r.host.createStateDirs(r.cfg.Handlers); err != nil {
		return err
	}
	if r.apparmor, err = container.DetectAppArmor(func(profile string) error {
		return journal.Record(hostjournal.Change{Kind: hostjournal.AppArmor, Name: profile})
	}); err != nil {
		r.host.log.Warn("default AppArmor profile is not available; containers that request no other profile run without AppArmor: resolve the error and restart the container runtime", "err", err)
	}
	if favorsDynamicCgroups(r.host.cgroups, r.cfg.SlowCgroups) {
		fast, err := favorDynamicCgroups()
		if err != nil {
			r.host.log.Info("cgroup mount option favordynmods is not available; containers start slower, nothing else is affected, retrying at the next start of the container runtime", "reason", err)
		} else {
			defer fast.Close()
		}
	}
	inventory := newInventory()
	network, err := newPodNetwork(r.host, &r.cfg, inventory, journal)
	if err != nil {
		return err
	}
	defer network.builtin.Close()
	s := r.compose(inventory, network)
	defer s.stop()
	defer func() { _ = r.engines.builtin.Close() }()
	if err := s.adopt(); err != nil {
		return err
	}
	if r.cfg.BuiltIn != "" {
		if _, err := r.images.BuiltIn(ctx, r.cfg.BuiltInImage, r.cfg.BuiltIn); err != nil {
			return err
		}
	}
	listener, err := listen(r.cfg.Socket)
	if err != nil {
		return err
	}
	defer listener.Close()
	runner := &streamRunner{inventory: inventory, engines: r.engines, background: s.background}
	streams, err := startStreamService(ctx, r.cfg.StreamAddress, runner, r.host.log)
	if err != nil {
		return err
	}
	defer streams.close()

	s.background.Go(func() { network.choose(ctx) })
	s.background.Go(func() { network.builtin.Maintain(ctx) })
	s.background.Go(func() { s.images.importArchives(ctx, r.cfg.ImagesDir) })
	s.background.Go(func() { r.images.Inspect(ctx) })
	err = r.serve(ctx, listener, s, streams)
	cancel() // stop goroutines before the resources they use are closed
	return err
}

// openJournal opens the journal of host changes, and records those of this run before they are made: the parent cgroup
// of pods and the tmpfs at Config.State. The journal is nil if Config.Journal is empty. The caller must close it even
// if openJournal returns an error; closing a nil journal is allowed.
func (r *Runtime) openJournal() (*hostjournal.Journal, error) {
	var journal *hostjournal.Journal
	if r.cfg.Journal != "" {
		var err error
		if journal, err = hostjournal.Open(r.cfg.Journal); err != nil {
			return nil, err
		}
	}
	return journal, journal.Record(
		hostjournal.Change{Kind: hostjournal.Cgroup, Name: r.host.defaultCgroup()},
		hostjournal.Change{Kind: hostjournal.Mount, Name: r.cfg.State},
	)
}

// serve serves CRI on listener until ctx is done or an upgrade is requested. In the latter case it returns an
// *UpgradeError. Before it returns, it waits up to stopTimeout for calls in flight.
func (r *Runtime) serve(ctx context.Context, listener net.Listener, s *services, streams *streamService) error {
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.UnaryInterceptor(logErrors(r.host.log)), grpc.WaitForHandlers(true))
	runtimeapi.RegisterRuntimeServiceServer(server, s.cri(streams))
	runtimeapi.RegisterImageServiceServer(server, s.images)
	importpb.Register(server, importService{s.images, r.upgrade})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	close(r.ready)
	var err error
	select {
	case err = <-served:
		return fmt.Errorf("serving CRI: %w", err)
	case <-ctx.Done():
	case argv := <-r.upgrade:
		err = &UpgradeError{Argv: argv}
	}
	// quitNow stops streams. Calls in flight get a short time to complete.
	s.background.quitNow()
	timer := time.AfterFunc(stopTimeout, server.Stop)
	server.GracefulStop()
	timer.Stop()
	_ = <-served // no error other than that the server was stopped
	return err
}

// stopTimeout is how long calls in flight may take after ctx is done. Then their connections are closed.
const stopTimeout = 500 * time.Millisecond

// UpgradeError is returned by Run when this process should execute another program, a new version of the runtime. The
// process must stay the same, because it is the parent of every container. Argv is the command.
type UpgradeError struct{ Argv []string }

func (e *UpgradeError) Error() string { return "replace the runtime by " + e.Argv[0] }

// listen opens the unix socket at path, which only root can use. It replaces a stale socket of a previous process. It
// returns an error if another process serves the socket.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("creating directory of the socket: %w", err)
	}
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return nil, fmt.Errorf("another process is serving %s", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("removing stale socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listening on the socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("setting mode of the socket: %w", err)
	}
	return l, nil
}

// targetOf returns the log attributes of the object that a CRI request names, or nil if it names none.
func targetOf(req any) []any {
	switch req := req.(type) {
	case *runtimeapi.RunPodSandboxRequest:
		m := req.GetConfig().GetMetadata()
		return []any{"pod", m.GetNamespace() + "/" + m.GetName()}
	case *runtimeapi.CreateContainerRequest:
		return []any{"podSandboxID", req.GetPodSandboxId(), "container", req.GetConfig().GetMetadata().GetName()}
	case interface{ GetContainerId() string }:
		return []any{"containerID", req.GetContainerId()}
	case interface{ GetPodSandboxId() string }:
		return []any{"podSandboxID", req.GetPodSandboxId()}
	case interface{ GetImage() *runtimeapi.ImageSpec }:
		return []any{"image", req.GetImage().GetImage()}
	}
	return nil
}

// logErrors returns a gRPC interceptor that logs each failed CRI call with its object, except for objects that do not
// exist, and converts the error with grpcError.
func logErrors(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		resp, err := handler(ctx, req)
		if err == nil {
			return resp, nil
		}
		method, coded := info.FullMethod[strings.LastIndexByte(info.FullMethod, '/')+1:], grpcError(err)
		if status.Code(coded) != codes.NotFound {
			log.Warn("CRI call failed; the kubelet or other client gets the error and decides about a retry", append(targetOf(req), "method", method, "err", err)...)
		}
		return resp, coded
	}
}

// grpcError converts err to a gRPC status: code NotFound if the object does not exist, the codes of a done context,
// else Unknown. The kubelet depends on these codes. Errors that are a status already are returned unchanged.
func grpcError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	code := codes.Unknown
	switch {
	case errors.Is(err, images.ErrNotFound), errors.Is(err, errNotFound):
		code = codes.NotFound
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	}
	return status.Error(code, err.Error())
}

// errNotFound means that this runtime has no sandbox or container with the requested ID. CRI clients get the code
// NotFound.
var errNotFound = errors.New("not found")
