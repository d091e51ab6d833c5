// Package testcsi implements a small CSI driver for tests. Volumes are bind-mounted directories of
// the host, block volumes are files with loop devices. The driver registers with a kubelet like
// real drivers, and records its calls.
package testcsi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Call is a gRPC call that the test driver has received.
type Call struct {
	// Method is the method name without the service, e.g. NodePublishVolume.
	Method string
	// Volume is the volume ID.
	Volume  string
	Request any
}

// Driver is a CSI driver for tests, which serves directories as volumes. Its fields must be set before Serve.
type Driver struct {
	Name, NodeID string
	// Dir contains the content of the volumes.
	Dir string
	// Topology and Max are returned by NodeGetInfo.
	Topology map[string]string
	Max      int64
	// MaxVolumes, if not nil, replaces Max.
	MaxVolumes func() int64
	// Capabilities are the capabilities of the node service.
	Capabilities []csipb.NodeServiceCapability_RPC_Type
	// Fail, if not nil, is called before each call is handled. Its error is the response to the call.
	Fail func(method, volume string) error

	csipb.UnimplementedNodeServer
	csipb.UnimplementedIdentityServer
	registerapi.UnimplementedRegistrationServer

	mu            sync.Mutex // guards the fields below
	calls         []Call
	registrations chan *registerapi.RegistrationStatus
}

// Serve serves on a unix socket, which is also the registration socket, until stop is called.
// status receives the registration status that the kubelet reports.
func (d *Driver) Serve(socket string) (status <-chan *registerapi.RegistrationStatus, stop func(), err error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return nil, nil, err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, nil, err
	}
	d.registrations = make(chan *registerapi.RegistrationStatus, 16)
	s := grpc.NewServer(grpc.UnaryInterceptor(d.record))
	csipb.RegisterNodeServer(s, d)
	csipb.RegisterIdentityServer(s, d)
	registerapi.RegisterRegistrationServer(s, d)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	return d.registrations, func() { s.Stop(); <-done }, nil
}

// record is a gRPC interceptor. It records a call and handles it, unless Fail returns an error.
func (d *Driver) record(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	c := Call{Method: info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:], Request: req}
	if v, ok := req.(interface{ GetVolumeId() string }); ok {
		c.Volume = v.GetVolumeId()
	}
	d.mu.Lock()
	d.calls = append(d.calls, c)
	d.mu.Unlock()
	if d.Fail != nil {
		if err := d.Fail(c.Method, c.Volume); err != nil {
			return nil, err
		}
	}
	return next(ctx, req)
}

// Calls returns the recorded gRPC calls for a volume, oldest first. If volume is empty, it returns
// all recorded calls.
func (d *Driver) Calls(volume string) []Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(d.calls), func(c Call) bool { return volume != "" && c.Volume != volume })
}

// ClearCalls removes all recorded calls, so that Calls returns only later ones.
func (d *Driver) ClearCalls() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = nil
}

// GetInfo returns the name of the driver to the kubelet's plugin registration.
func (d *Driver) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: d.Name, SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus receives the kubelet's registration status and passes it to the channel
// of Serve. It drops the status if the channel is full.
func (d *Driver) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	select {
	case d.registrations <- s:
	default:
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

// GetPluginInfo returns the name of the driver.
func (d *Driver) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: d.Name, VendorVersion: "1"}, nil
}

// NodeGetInfo returns the node ID, the topology and the maximum number of volumes from the fields
// of d.
func (d *Driver) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	out := &csipb.NodeGetInfoResponse{NodeId: d.NodeID, MaxVolumesPerNode: d.Max}
	if d.MaxVolumes != nil {
		out.MaxVolumesPerNode = d.MaxVolumes()
	}
	if len(d.Topology) > 0 {
		out.AccessibleTopology = &csipb.Topology{Segments: maps.Clone(d.Topology)}
	}
	return out, nil
}

// NodeGetCapabilities returns d.Capabilities, the capabilities of the node service that the test has configured.
func (d *Driver) NodeGetCapabilities(context.Context, *csipb.NodeGetCapabilitiesRequest) (*csipb.NodeGetCapabilitiesResponse, error) {
	out := &csipb.NodeGetCapabilitiesResponse{}
	for _, c := range d.Capabilities {
		out.Capabilities = append(out.Capabilities, &csipb.NodeServiceCapability{Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: c}}})
	}
	return out, nil
}

// content returns the directory with the content of a volume.
func (d *Driver) content(volume string) string { return filepath.Join(d.Dir, volume) }

// bind bind-mounts from at to, unless something is mounted there.
func bind(from, to string, readOnly bool) error {
	if mounted, err := mountinfo.Mounted(to); err != nil || mounted {
		return err
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting %s to %s: %w", from, to, err)
	}
	if readOnly {
		return unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	return nil
}

// unbind unmounts a path. It is not an error if nothing is mounted there or the path does not exist.
func unbind(at string) error {
	err := unix.Unmount(at, unix.UMOUNT_NOFOLLOW)
	if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// NodeStageVolume bind-mounts the directory of the volume, which it creates, to the staging path.
// For a block volume it sets up the loop device.
func (d *Driver) NodeStageVolume(_ context.Context, r *csipb.NodeStageVolumeRequest) (*csipb.NodeStageVolumeResponse, error) {
	if r.GetVolumeCapability().GetBlock() != nil {
		if _, err := d.device(r.VolumeId); err != nil {
			return nil, err
		}
		return &csipb.NodeStageVolumeResponse{}, nil
	}
	if err := os.MkdirAll(d.content(r.VolumeId), 0o755); err != nil {
		return nil, err
	}
	return &csipb.NodeStageVolumeResponse{}, bind(d.content(r.VolumeId), r.StagingTargetPath, false)
}

// NodeUnstageVolume unmounts the staging path and detaches the loop device of a block volume. The content of the volume
// remains.
func (d *Driver) NodeUnstageVolume(_ context.Context, r *csipb.NodeUnstageVolumeRequest) (*csipb.NodeUnstageVolumeResponse, error) {
	loop, err := d.loop(r.VolumeId)
	if err == nil && loop != "" {
		err = tool("losetup", "-d", loop)
	}
	return &csipb.NodeUnstageVolumeResponse{}, errors.Join(err, unbind(r.StagingTargetPath))
}

// NodePublishVolume bind-mounts the staged volume or the loop device to the target path. An
// ephemeral volume, which was not staged, gets a file "context" with its volume context.
func (d *Driver) NodePublishVolume(_ context.Context, r *csipb.NodePublishVolumeRequest) (*csipb.NodePublishVolumeResponse, error) {
	from := r.StagingTargetPath
	if r.GetVolumeCapability().GetBlock() != nil {
		device, err := d.device(r.VolumeId)
		if err != nil {
			return nil, err
		}
		f, err := os.OpenFile(r.TargetPath, os.O_CREATE|os.O_RDONLY, 0o644)
		if err != nil {
			return nil, err
		}
		f.Close()
		return &csipb.NodePublishVolumeResponse{}, bind(device, r.TargetPath, false)
	}
	if from == "" {
		from = d.content(r.VolumeId)
		if err := os.MkdirAll(from, 0o755); err != nil {
			return nil, err
		}
		var about []string
		for k, v := range r.VolumeContext {
			about = append(about, k+"="+v+"\n")
		}
		slices.Sort(about)
		if err := os.WriteFile(filepath.Join(from, "context"), []byte(strings.Join(about, "")), 0o644); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(r.TargetPath, 0o755); err != nil {
		return nil, err
	}
	return &csipb.NodePublishVolumeResponse{}, bind(from, r.TargetPath, r.Readonly)
}

// NodeUnpublishVolume unmounts and removes the target path.
func (d *Driver) NodeUnpublishVolume(_ context.Context, r *csipb.NodeUnpublishVolumeRequest) (*csipb.NodeUnpublishVolumeResponse, error) {
	err := unbind(r.TargetPath)
	if err == nil {
		if err = os.Remove(r.TargetPath); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	return &csipb.NodeUnpublishVolumeResponse{}, err
}

// NodeExpandVolume reports the requested capacity as the new one, without changing the volume.
func (d *Driver) NodeExpandVolume(_ context.Context, r *csipb.NodeExpandVolumeRequest) (*csipb.NodeExpandVolumeResponse, error) {
	return &csipb.NodeExpandVolumeResponse{CapacityBytes: r.GetCapacityRange().GetRequiredBytes()}, nil
}

// NodeGetVolumeStats returns constant values, or NotFound if the volume path does not exist.
func (d *Driver) NodeGetVolumeStats(_ context.Context, r *csipb.NodeGetVolumeStatsRequest) (*csipb.NodeGetVolumeStatsResponse, error) {
	if _, err := os.Stat(r.VolumePath); err != nil {
		return nil, status.Errorf(codes.NotFound, "%v", err)
	}
	return &csipb.NodeGetVolumeStatsResponse{Usage: []*csipb.VolumeUsage{
		{Unit: csipb.VolumeUsage_BYTES, Total: 1000, Used: 300, Available: 700},
		{Unit: csipb.VolumeUsage_INODES, Total: 100, Used: 30, Available: 70},
	}}, nil
}

// device returns the path of the loop device of a block volume. It sets up the device on a file of
// 1 MiB if needed.
func (d *Driver) device(volume string) (string, error) {
	if loop, err := d.loop(volume); err != nil || loop != "" {
		return loop, err
	}
	if err := os.MkdirAll(d.Dir, 0o755); err != nil {
		return "", err
	}
	f, err := os.OpenFile(d.content(volume)+".img", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	err = f.Truncate(1 << 20)
	f.Close()
	if err != nil {
		return "", err
	}
	if err := tool("losetup", "-f", f.Name()); err != nil {
		return "", err
	}
	return d.loop(volume)
}

// loop returns the loop device of a block volume, or "" if none is set up.
func (d *Driver) loop(volume string) (string, error) {
	out, err := exec.Command("losetup", "-n", "-O", "NAME", "-j", d.content(volume)+".img").Output()
	if err != nil {
		return "", fmt.Errorf("finding loop device: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// tool runs a command. The error contains its output.
func tool(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}
