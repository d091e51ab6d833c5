package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/fsnotify/fsnotify"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	deviceapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"hyperkube/internal/host/layout"
	"hyperkube/internal/testing/testcsi"
	"hyperkube/internal/testing/testimage"
)

// killerEnv makes a process of the test binary run the drivers of TestWindows, for the cluster with
// this root.
const killerEnv = "HYPERKUBE_E2E_KILLER"

// Names of the killer's drivers and its registry.
const (
	killerCSI    = "csi.windows.example.com"
	killerDRA    = "dra.windows.example.com"
	killerDevice = "windows.example.com/thing"
	killerImages = "127.0.0.1:5000" // the machine's loopback is used by this test only
)

// killer is a process in the machine's namespaces that is a CSI driver, a device plugin, a DRA
// driver and an image registry. It kills processes of the cluster at the moment at which one of
// them calls it or changes a file.
//
// It reads the lines "call METHOD FILE…", "create DIRECTORY FILE…" and "write PATH FILE…": at the
// next call of the method, the next new entry of the directory, or the next write to the file, it
// kills the processes of the PID files. It prints "armed" and then "killed", or "failed" and the
// reason. For "left" it prints the number of prepared claims.
type killer struct {
	layout layout.Node
	csi    *testcsi.Driver
	claims *deviceDriver

	mu     sync.Mutex // guards the fields below, and the output
	method string
	files  []string
}

// beKiller runs the killer in a process of the test binary. It returns at the end of the input.
func beKiller(root string) int {
	k := &killer{layout: layout.Under(root)}
	if err := k.run(); err != nil {
		fmt.Println("failed", err)
		return 1
	}
	return 0
}

func (k *killer) run() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := k.serveCSI(); err != nil {
		return err
	}
	if err := k.serveDevices(ctx); err != nil {
		return err
	}
	if err := k.serveClaims(ctx); err != nil {
		return err
	}
	if err := k.serveImages(); err != nil {
		return err
	}
	k.say("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		words := strings.Fields(in.Text())
		switch words[0] {
		case "call":
			k.mu.Lock()
			k.method, k.files = words[1], words[2:]
			k.mu.Unlock()
			k.say("armed")
		case "create", "write":
			if err := k.watch(ctx, words[0], words[1], words[2:]); err != nil {
				return err
			}
		case "left":
			k.say(fmt.Sprintf("left %d", k.claims.count()))
		}
	}
	return in.Err()
}

func (k *killer) say(line string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	fmt.Println(line)
}

// called is called before each call is handled.
func (k *killer) called(method string) {
	k.mu.Lock()
	files := k.files
	if k.method != method {
		k.mu.Unlock()
		return
	}
	k.method, k.files = "", nil
	k.mu.Unlock()
	k.kill(files)
}

func (k *killer) kill(files []string) {
	answer := "killed"
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			answer = "failed " + err.Error()
			continue
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err != nil {
			answer = "failed " + err.Error()
		}
	}
	k.say(answer)
}

// watch kills at the next event of a directory or a file.
func (k *killer) watch(ctx context.Context, kind, path string, files []string) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	if err := w.Add(path); err != nil {
		return errors.Join(err, w.Close())
	}
	k.say("armed")
	go func() {
		defer w.Close()
		for {
			select {
			case e := <-w.Events:
				if kind == "create" && e.Has(fsnotify.Create) || kind == "write" && e.Has(fsnotify.Write) {
					k.kill(files)
					return
				}
			case err := <-w.Errors:
				k.say("failed " + err.Error())
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return nil
}

func (k *killer) serveCSI() error {
	k.csi = &testcsi.Driver{
		Name: killerCSI, NodeID: "here", Dir: filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(k.layout.Etc))), "csi"),
		Capabilities: []csipb.NodeServiceCapability_RPC_Type{csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csipb.NodeServiceCapability_RPC_EXPAND_VOLUME},
		Fail: func(method, _ string) error {
			k.called(method)
			return nil
		},
	}
	_, _, err := k.csi.Serve(filepath.Join(k.layout.Kubelet, "plugins_registry", killerCSI+"-reg.sock"))
	return err
}

// killerThings is the killer's device plugin.
type killerThings struct {
	things
	k *killer
}

func (killerThings) GetDevicePluginOptions(context.Context, *deviceapi.Empty) (*deviceapi.DevicePluginOptions, error) {
	return &deviceapi.DevicePluginOptions{PreStartRequired: true}, nil
}

func (p killerThings) Allocate(ctx context.Context, r *deviceapi.AllocateRequest) (*deviceapi.AllocateResponse, error) {
	p.k.called("Allocate")
	return p.things.Allocate(ctx, r)
}

func (p killerThings) PreStartContainer(context.Context, *deviceapi.PreStartContainerRequest) (*deviceapi.PreStartContainerResponse, error) {
	p.k.called("PreStartContainer")
	return &deviceapi.PreStartContainerResponse{}, nil
}

// serveDevices serves the device plugin and registers it. It registers again after each restart of
// the kubelet, as plugins must.
func (k *killer) serveDevices(ctx context.Context) error {
	dir := filepath.Join(k.layout.Kubelet, "device-plugins")
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	if err := w.Add(dir); err != nil {
		return errors.Join(err, w.Close())
	}
	var server *grpc.Server
	serve := func() error {
		if server != nil {
			server.Stop()
		}
		socket := filepath.Join(dir, "windows.sock")
		if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		l, err := net.Listen("unix", socket)
		if err != nil {
			return err
		}
		server = grpc.NewServer()
		deviceapi.RegisterDevicePluginServer(server, killerThings{k: k})
		go func() { _ = server.Serve(l) }()
		conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer conn.Close()
		limited, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		_, err = deviceapi.NewRegistrationClient(conn).Register(limited, &deviceapi.RegisterRequest{
			Version: deviceapi.Version, Endpoint: filepath.Base(socket), ResourceName: killerDevice, Options: &deviceapi.DevicePluginOptions{PreStartRequired: true},
		}, grpc.WaitForReady(true))
		return err
	}
	if err := serve(); err != nil {
		return errors.Join(err, w.Close())
	}
	go func() {
		defer w.Close()
		for {
			select {
			case e := <-w.Events:
				if e.Has(fsnotify.Create) && filepath.Base(e.Name) == "kubelet.sock" {
					if err := serve(); err != nil {
						fmt.Fprintln(os.Stderr, "registering the device plugin again:", err)
					}
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return nil
}

// killerClaims is the killer's DRA driver.
type killerClaims struct {
	*deviceDriver
	k *killer
}

func (d killerClaims) PrepareResourceClaims(ctx context.Context, claims []*resourcev1.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	d.k.called("Prepare")
	out, err := d.deviceDriver.PrepareResourceClaims(ctx, claims)
	for _, r := range out {
		for i := range r.Devices {
			r.Devices[i].CDIDeviceIDs = nil
		}
	}
	return out, err
}

func (d killerClaims) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	d.k.called("Unprepare")
	return d.deviceDriver.UnprepareResourceClaims(ctx, claims)
}

func (k *killer) serveClaims(ctx context.Context) error {
	rest, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return err
	}
	k.claims = &deviceDriver{name: killerDRA, prepared: map[types.UID]bool{}}
	node := os.Getenv(killerNodeEnv)
	data := filepath.Join(k.layout.Kubelet, "plugins", killerDRA)
	if err := os.MkdirAll(data, 0o750); err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, killerClaims{k.claims, k}, kubeletplugin.DriverName(killerDRA), kubeletplugin.KubeClient(kube), kubeletplugin.NodeName(node),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(k.layout.Kubelet, "plugins_registry")), kubeletplugin.PluginDataDirectoryPath(data))
	if err != nil {
		return err
	}
	return helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		node: {Slices: []resourceslice.Slice{{Devices: []resourcev1.Device{{Name: "one"}}}}},
	}})
}

// serveImages runs a registry that calls called with "blob".
func (k *killer) serveImages() error {
	l, err := net.Listen("tcp", killerImages)
	if err != nil {
		return err
	}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	go func() {
		_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
				k.called("blob")
			}
			inner.ServeHTTP(w, r)
		}))
	}()
	image, err := testimage.Busybox()
	if err != nil {
		return err
	}
	for _, tag := range []string{"main", "runtime", "both"} {
		ref, err := name.NewTag(killerImages+"/tool:"+tag, name.Insecure)
		if err != nil {
			return err
		}
		if err := remote.Write(ref, image); err != nil {
			return err
		}
	}
	return nil
}

// killerNodeEnv is the name of the killer's node.
const killerNodeEnv = "HYPERKUBE_E2E_KILLER_NODE"
