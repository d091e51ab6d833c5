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
	"hyperkube/internal/cgroup"
	"hyperkube/internal/hostchange"
	"hyperkube/internal/layout"
	"hyperkube/internal/podnet"
)

// maxMessage bounds a CRI message, as other runtimes do.
const maxMessage = 16 << 20

// Runtime serves CRI.
type Runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	cfg      Config
	log      *slog.Logger
	boot     string
	images   *images.Store
	cgroups  *cgroup.Manager
	runner   *container.Runner
	engines  map[string]engine // by handler; not changed after New
	network  *podnet.Network
	plugins  *cni.Plugins
	journal  *hostchange.Journal
	apparmor container.AppArmor
	selinux  *selinux.Host // nil without
	stream   streaming.Server
	events   broker

	ready chan struct{}
	// watch is what follows processes and logs; Run waits for it.
	watch sync.WaitGroup
	// quit is closed when Run ends.
	quit chan struct{}
	// upgrade receives what Run is to make way for.
	upgrade chan []string

	// networkSetup is held while the pod network is set up and networkErr says how
	// that went.
	networkSetup sync.Mutex

	mu         sync.Mutex // guards what follows
	sandboxes  map[string]*sandboxState
	containers map[string]*containerState
	// names are taken by sandboxes and containers: a repeated request must
	// not make a second one.
	names map[string]string
	// making are the names of what is being made.
	making map[string]*making
	// plugged are the sandboxes that this process has had plugins connect.
	plugged    map[string]bool
	networkErr error // why the pod network is not ready; nil if it is
}

// New validates cfg and makes the folders.
func New(cfg Config) (*Runtime, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	// Containers' roots must be told of as the mount table has them.
	for _, dir := range []*string{&cfg.Root, &cfg.State} {
		real, err := layout.Resolve(*dir)
		if err != nil {
			return nil, err
		}
		*dir = real
	}
	r := &Runtime{
		cfg: cfg, log: cfg.Log, ready: make(chan struct{}), quit: make(chan struct{}), upgrade: make(chan []string, 1),
		sandboxes: map[string]*sandboxState{}, containers: map[string]*containerState{}, names: map[string]string{}, making: map[string]*making{}, plugged: map[string]bool{},
		networkErr: errors.New("the pod network is being set up"),
	}
	var err error
	if r.boot, err = bootID(); err != nil {
		return nil, err
	}
	for _, dir := range []string{r.cfg.Root, r.path("sandboxes"), r.path("containers")} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, fmt.Errorf("making the runtime's directories: %w", err)
		}
	}
	if r.cgroups, err = cgroup.Open(); err != nil {
		return nil, err
	}
	r.makeEngines()
	if r.images, err = images.Open(r.path("images"), r.log); err != nil {
		return nil, err
	}
	if err := sandbox.Install(r.pauseProgram()); err != nil {
		return nil, err
	}
	if r.apparmor, err = container.DetectAppArmor(); err != nil {
		r.log.Warn("containers run without the default AppArmor profile", "error", err)
	}
	if r.selinux, err = selinux.Detect(); err != nil {
		r.log.Warn("containers run without SELinux labels", "error", err)
	}
	// What is made in a directory has its label. Layers need one that containers may
	// read: what they map is checked as the file below the overlay.
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

// cidrFile keeps the pod CIDRs that UpdateRuntimeConfig brought.
func (r *Runtime) cidrFile() string { return r.path("pod-cidrs") }

// Ready is closed once CRI is served.
func (r *Runtime) Ready() <-chan struct{} { return r.ready }

// Run serves CRI until ctx ends. Containers live on.
func (r *Runtime) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() { _ = r.journal.Close() }()
	if err := r.record(); err != nil {
		return err
	}
	if err := r.makeState(); err != nil {
		return err
	}
	if r.favorsDynamicCgroups() {
		fast, err := favorDynamicCgroups()
		if err != nil {
			r.log.Info("containers start slower, for this kernel moves processes between cgroups slowly", "reason", err)
		} else {
			defer fast.Close()
		}
	}
	if err := r.makeNetwork(); err != nil {
		return err
	}
	defer r.network.Close()
	defer r.stopWatching()
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

	r.watch.Go(func() { r.chooseNetwork(ctx) })
	r.watch.Go(func() { r.network.Keep(ctx) })
	r.watch.Go(func() { r.importImages(ctx) })
	r.watch.Go(func() { r.images.Inspect(ctx) })
	err = r.serve(ctx, listener)
	cancel() // what follows and watches ends before what it works with
	return err
}

// record opens the journal and notes in it what this run changes of the host at once.
func (r *Runtime) record() error {
	if r.cfg.Journal != "" {
		var err error
		if r.journal, err = hostchange.Open(r.cfg.Journal); err != nil {
			return err
		}
	}
	return r.journal.Record(
		hostchange.Change{Kind: hostchange.Cgroup, Name: r.defaultCgroup()},
		hostchange.Change{Kind: hostchange.Mount, Name: r.cfg.State},
	)
}

// makeNetwork makes the pods' network, of the ranges that were told last, and looks for
// plugins that take its place. Nothing of it is set up.
func (r *Runtime) makeNetwork() error {
	cidrs := r.cfg.PodCIDRs
	if data, err := os.ReadFile(r.cidrFile()); err == nil {
		if saved, err := parseCIDRs(strings.TrimSpace(string(data))); err == nil {
			cidrs = saved
		}
	}
	r.plugins = cni.New(r.cfg.CNIConfDir, r.cfg.CNIBinDirs, r.path("cni"), r.othersPlugins()...)
	var err error
	r.network, err = podnet.New(podnet.Config{
		Bridge: r.cfg.LinkPrefix + "-br0", LinkPrefix: r.cfg.LinkPrefix, AddressDir: r.state("addresses"),
		CIDRs: cidrs, MTU: r.cfg.MTU, Tunnel: r.cfg.LinkPrefix + "-vxlan", OpenPorts: []int{layout.PortKubelet}, Journal: r.journal, Log: r.log,
	})
	return err
}

// chooseNetwork sets the pods' network up, or leaves that to plugins and follows what they can.
func (r *Runtime) chooseNetwork(ctx context.Context) {
	if n, _ := r.external(); n == nil {
		r.setupNetwork(ctx)
		return
	}
	r.mu.Lock()
	r.networkErr = errExternal
	r.mu.Unlock()
	r.lookAtPlugins(ctx)
}

// serve serves CRI on listener until ctx ends or another program is to take over, which
// is an *UpgradeError.
func (r *Runtime) serve(ctx context.Context, listener net.Listener) error {
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.UnaryInterceptor(r.logged), grpc.WaitForHandlers(true))
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
	// Streams end by this, and calls that go on get a moment for their
	// answers.
	close(r.quit)
	timer := time.AfterFunc(stopTime, server.Stop)
	server.GracefulStop()
	timer.Stop()
	_ = <-served // says no more than that it was stopped
	return err
}

// stopTime bounds the wait for calls at the end.
const stopTime = 500 * time.Millisecond

// UpgradeError is what Run returns when another program is to take this one's
// place, in the same process.
type UpgradeError struct{ Argv []string }

func (e *UpgradeError) Error() string { return "make way for " + e.Argv[0] }

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
		return status.Error(codes.FailedPrecondition, "an upgrade is under way")
	}
}

// stopWatching ends all that follows containers, and waits for it.
func (r *Runtime) stopWatching() {
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
		c.letGo()
	}
	r.mu.Unlock()
	r.watch.Wait()
}

// listen opens the socket, in place of one that a dead predecessor left.
func (r *Runtime) listen() (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(r.cfg.Socket), 0o755); err != nil {
		return nil, fmt.Errorf("making the socket's directory: %w", err)
	}
	if c, err := net.Dial("unix", r.cfg.Socket); err == nil {
		c.Close()
		return nil, fmt.Errorf("another process serves %s", r.cfg.Socket)
	}
	if err := os.Remove(r.cfg.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("removing an old socket: %w", err)
	}
	l, err := net.Listen("unix", r.cfg.Socket)
	if err != nil {
		return nil, fmt.Errorf("opening the socket: %w", err)
	}
	if err := os.Chmod(r.cfg.Socket, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("protecting the socket: %w", err)
	}
	return l, nil
}

// setupNetwork makes the pod network and gives adopted pods their host ports
// again.
func (r *Runtime) setupNetwork(ctx context.Context) {
	r.networkSetup.Lock()
	defer r.networkSetup.Unlock()
	err := r.network.Setup(ctx)
	if err == nil {
		err = r.restorePorts(ctx)
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, podnet.ErrNoCIDR) {
		r.log.Error("the pod network cannot be set up", "error", err)
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
		r.log.Warn("images cannot be imported", "error", err)
		return
	}
	for _, file := range files {
		list, err := r.images.ImportFile(ctx, file)
		if err != nil {
			r.log.Warn("an image archive cannot be imported", "file", file, "error", err)
			continue
		}
		for _, image := range list {
			r.log.Info("image imported", "file", file, "image", image.ID, "names", image.Names)
		}
	}
}

// logged writes a line for each call that fails.
func (r *Runtime) logged(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	if err == nil {
		return resp, nil
	}
	method, coded := info.FullMethod[strings.LastIndexByte(info.FullMethod, '/')+1:], grpcError(err)
	if status.Code(coded) != codes.NotFound {
		r.log.Warn("call failed", "method", method, "error", err)
	}
	return resp, coded
}

// grpcError gives an error the code that the kubelet goes by.
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

// errNotFound tells of sandboxes and containers that are not there.
var errNotFound = errors.New("not found")

func parseCIDRs(text string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for part := range strings.SplitSeq(text, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("bad pod CIDR: %w", err)
		}
		out = append(out, p)
	}
	return out, nil
}

// defaultCgroup is for pods that name no cgroup.
func (r *Runtime) defaultCgroup() string {
	return filepath.Join("/", r.cfg.CgroupRoot, "hyperkube-pods")
}
