//go:build cgo

package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"

	"hyperkube/components/runtime/cni"
	"hyperkube/components/runtime/container"
	"hyperkube/components/runtime/images"
	"hyperkube/components/runtime/importpb"
	"hyperkube/components/runtime/sandbox"
	"hyperkube/components/runtime/selinux"
	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/pod/podnet"
)

// maxMessage is the maximum size of a CRI message, as in other runtimes.
const maxMessage = 16 << 20

// Runtime implements CRI.
type Runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	cfg      Config
	log      *slog.Logger
	boot     string
	images   *images.Store
	cgroups  *cgroup.Manager
	runner   *container.Runner
	engines  map[string]engine // by handler name; read-only after New
	network  *podnet.Network
	plugins  *cni.Plugins
	journal  *hostjournal.Journal
	apparmor container.AppArmor
	selinux  *selinux.Host // nil without SELinux
	stream   streaming.Server
	events   broker

	ready chan struct{}
	// watchers tracks goroutines that watch processes and logs. Run waits for them.
	watchers sync.WaitGroup
	// quit is closed when Run returns.
	quit chan struct{}
	// upgrade receives the command of the program that should replace this one.
	upgrade chan []string

	// networkSetup serializes setups of the pod network.
	networkSetup sync.Mutex

	mu         sync.Mutex // guards the fields below
	sandboxes  map[string]*sandboxState
	containers map[string]*containerState
	// names are the reserved names of sandboxes and containers, so that a repeated request does not
	// create a second one.
	names map[string]string
	// creations contains the creations in progress, by name.
	creations map[string]*creation
	// cniAttached contains the sandboxes that this process has connected with CNI plugins.
	cniAttached map[string]bool
	networkErr  error // why the pod network is not ready, or nil
}

// New validates cfg and creates the directories.
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
	r := &Runtime{
		cfg: cfg, log: cfg.Log, ready: make(chan struct{}), quit: make(chan struct{}), upgrade: make(chan []string, 1),
		sandboxes: map[string]*sandboxState{}, containers: map[string]*containerState{}, names: map[string]string{}, creations: map[string]*creation{}, cniAttached: map[string]bool{},
		networkErr: errors.New("the pod network is being set up"),
	}
	var err error
	if r.boot, err = bootID(); err != nil {
		return nil, err
	}
	for _, dir := range []string{r.cfg.Root, r.path("sandboxes"), r.path("containers")} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, fmt.Errorf("creating the runtime's directories: %w", err)
		}
	}
	if r.cgroups, err = cgroup.Open(); err != nil {
		return nil, err
	}
	r.createEngines()
	if r.images, err = images.Open(r.path("images"), r.log); err != nil {
		return nil, err
	}
	if err := sandbox.Install(r.pauseProgram()); err != nil {
		return nil, err
	}
	if r.apparmor, err = container.DetectAppArmor(); err != nil {
		r.log.Warn("default AppArmor profile not available, containers run without it", "err", err)
	}
	if r.selinux, err = selinux.Detect(); err != nil {
		r.log.Warn("SELinux not available, containers run without labels", "err", err)
	}
	// New files inherit the label of their directory. Containers must be able to read the label of
	// layers, because mapped files are checked against the lower file of the overlay.
	for _, path := range []string{r.pauseProgram(), r.path("images", "tmp"), r.path("images", "layers")} {
		if err := r.selinux.LabelForAll(path); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *Runtime) path(parts ...string) string {
	return filepath.Join(append([]string{r.cfg.Root}, parts...)...)
}

func (r *Runtime) state(parts ...string) string {
	return filepath.Join(append([]string{r.cfg.State}, parts...)...)
}

func (r *Runtime) pauseProgram() string { return r.path("pause") }

// cidrFile is the file that stores the pod CIDRs of UpdateRuntimeConfig.
func (r *Runtime) cidrFile() string { return r.path("pod-cidrs") }

// Ready returns a channel that is closed once CRI is served.
func (r *Runtime) Ready() <-chan struct{} { return r.ready }

// Run serves CRI until ctx is cancelled. Containers keep running afterwards.
func (r *Runtime) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() { _ = r.journal.Close() }()
	if err := r.openJournal(); err != nil {
		return err
	}
	if err := r.createStateDirs(); err != nil {
		return err
	}
	if r.favorsDynamicCgroups() {
		fast, err := favorDynamicCgroups()
		if err != nil {
			r.log.Info("fast cgroup migration (favordynmods) not available, containers start slower", "reason", err)
		} else {
			defer fast.Close()
		}
	}
	if err := r.createNetwork(); err != nil {
		return err
	}
	defer r.network.Close()
	defer r.stopWatchers()
	defer func() { _ = r.runner.Close() }()
	if err := r.adopt(); err != nil {
		return err
	}
	if r.cfg.BuiltIn != "" {
		if _, err := r.images.BuiltIn(ctx, r.cfg.BuiltInImage, r.cfg.BuiltIn); err != nil {
			return err
		}
	}
	listener, err := r.listen()
	if err != nil {
		return err
	}
	defer listener.Close()
	if err := r.startStreaming(ctx); err != nil {
		return err
	}
	defer func() { _ = r.stream.Stop() }()

	r.watchers.Go(func() { r.chooseNetwork(ctx) })
	r.watchers.Go(func() { r.network.Maintain(ctx) })
	r.watchers.Go(func() { r.importImages(ctx) })
	r.watchers.Go(func() { r.images.Inspect(ctx) })
	err = r.serve(ctx, listener)
	cancel() // stop goroutines before the resources they use are closed
	return err
}

// openJournal opens the journal and records the host changes of this run.
func (r *Runtime) openJournal() error {
	if r.cfg.Journal != "" {
		var err error
		if r.journal, err = hostjournal.Open(r.cfg.Journal); err != nil {
			return err
		}
	}
	return r.journal.Record(
		hostjournal.Change{Kind: hostjournal.Cgroup, Name: r.defaultCgroup()},
		hostjournal.Change{Kind: hostjournal.Mount, Name: r.cfg.State},
	)
}

// createNetwork creates the built-in network with the most recent pod CIDRs, and the CNI plugins. It
// does not change the host.
func (r *Runtime) createNetwork() error {
	cidrs := r.cfg.PodCIDRs
	if data, err := os.ReadFile(r.cidrFile()); err == nil {
		if saved, err := parseCIDRs(strings.TrimSpace(string(data))); err == nil {
			cidrs = saved
		}
	}
	r.plugins = cni.New(r.cfg.CNIConfDir, r.cfg.CNIBinDirs, r.path("cni"), r.otherCNICaches()...)
	var err error
	r.network, err = podnet.New(podnet.Config{
		Bridge: r.cfg.LinkPrefix + "-br0", LinkPrefix: r.cfg.LinkPrefix, AddressDir: r.state("addresses"),
		CIDRs: cidrs, MTU: r.cfg.MTU, Tunnel: r.cfg.LinkPrefix + "-vxlan", OpenPorts: []int{layout.PortKubelet}, Journal: r.journal, Log: r.log,
	})
	return err
}

// chooseNetwork sets up the built-in network, unless CNI plugins are configured.
func (r *Runtime) chooseNetwork(ctx context.Context) {
	if n, _ := r.cniNetwork(); n == nil {
		r.setupNetwork(ctx)
		return
	}
	r.mu.Lock()
	r.networkErr = errCNINetwork
	r.mu.Unlock()
	r.reconcileCNI(ctx)
}

// serve serves CRI on listener until ctx is cancelled or an upgrade is requested, for which it
// returns an *UpgradeError.
func (r *Runtime) serve(ctx context.Context, listener net.Listener) error {
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.UnaryInterceptor(r.logErrors), grpc.WaitForHandlers(true))
	runtimeapi.RegisterRuntimeServiceServer(server, r)
	runtimeapi.RegisterImageServiceServer(server, r)
	importpb.Register(server, r)
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
	// Closing quit stops streams. Calls in flight get a short time to complete.
	close(r.quit)
	timer := time.AfterFunc(stopTimeout, server.Stop)
	server.GracefulStop()
	timer.Stop()
	_ = <-served // no error other than that the server was stopped
	return err
}

// stopTimeout is how long calls in flight may take at shutdown.
const stopTimeout = 500 * time.Millisecond

// UpgradeError is returned by Run when another program should replace this one in the same process.
type UpgradeError struct{ Argv []string }

func (e *UpgradeError) Error() string { return "replace the runtime by " + e.Argv[0] }

// Upgrade implements importpb.Server.
func (r *Runtime) Upgrade(_ context.Context, argv []string) error {
	if len(argv) == 0 || !filepath.IsAbs(argv[0]) {
		return status.Error(codes.InvalidArgument, "the program must be an absolute path")
	}
	if err := unix.Access(argv[0], unix.X_OK); err != nil {
		return status.Errorf(codes.InvalidArgument, "%s cannot be executed: %v", argv[0], err)
	}
	select {
	case r.upgrade <- argv:
		return nil
	default:
		return status.Error(codes.FailedPrecondition, "an upgrade is in progress")
	}
}

// stopWatchers stops all goroutines that watch containers and waits for them.
func (r *Runtime) stopWatchers() {
	select {
	case <-r.quit:
	default:
		close(r.quit)
	}
	r.mu.Lock()
	for _, s := range r.sandboxes {
		if s.handle != nil {
			s.handle.Close()
		}
	}
	for _, c := range r.containers {
		c.closeFiles()
	}
	r.mu.Unlock()
	r.watchers.Wait()
}

// listen opens the socket. It replaces a stale socket of a previous process.
func (r *Runtime) listen() (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(r.cfg.Socket), 0o755); err != nil {
		return nil, fmt.Errorf("creating directory of the socket: %w", err)
	}
	if c, err := net.Dial("unix", r.cfg.Socket); err == nil {
		c.Close()
		return nil, fmt.Errorf("another process is serving %s", r.cfg.Socket)
	}
	if err := os.Remove(r.cfg.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("removing stale socket: %w", err)
	}
	l, err := net.Listen("unix", r.cfg.Socket)
	if err != nil {
		return nil, fmt.Errorf("listening on the socket: %w", err)
	}
	if err := os.Chmod(r.cfg.Socket, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("setting mode of the socket: %w", err)
	}
	return l, nil
}

// setupNetwork sets up the built-in network and publishes the host ports of adopted pods.
func (r *Runtime) setupNetwork(ctx context.Context) {
	r.networkSetup.Lock()
	defer r.networkSetup.Unlock()
	err := r.network.Setup(ctx)
	if err == nil {
		err = r.publishAdoptedPorts(ctx)
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, podnet.ErrNoCIDR) {
		r.log.Error("setting up the node's built-in pod network failed", "err", err)
	}
	r.mu.Lock()
	r.networkErr = err
	r.mu.Unlock()
}

func (r *Runtime) importImages(ctx context.Context) {
	if r.cfg.ImagesDir == "" {
		return
	}
	files, err := filepath.Glob(filepath.Join(r.cfg.ImagesDir, "*.tar"))
	if err != nil {
		r.log.Warn("listing image archives failed", "err", err)
		return
	}
	for _, file := range files {
		list, err := r.images.ImportFile(ctx, file)
		if err != nil {
			r.log.Warn("importing image archive failed", "file", file, "err", err)
			continue
		}
		for _, image := range list {
			r.log.Info("image imported", "file", file, "image", image.ID, "names", image.Names)
		}
	}
}

// logErrors logs each failed call.
func (r *Runtime) logErrors(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	if err == nil {
		return resp, nil
	}
	method, coded := info.FullMethod[strings.LastIndexByte(info.FullMethod, '/')+1:], grpcError(err)
	if status.Code(coded) != codes.NotFound {
		r.log.Warn("call failed", "method", method, "err", err)
	}
	return resp, coded
}

// grpcError converts an error to a gRPC status with the code that the kubelet expects.
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

// errNotFound reports that a sandbox or container does not exist.
var errNotFound = errors.New("not found")

func parseCIDRs(text string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for part := range strings.SplitSeq(text, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("invalid pod CIDR: %w", err)
		}
		out = append(out, p)
	}
	return out, nil
}

// defaultCgroup returns the parent cgroup of pods that do not specify one.
func (r *Runtime) defaultCgroup() string {
	return filepath.Join("/", r.cfg.CgroupRoot, "hyperkube-pods")
}
