//go:build cgo

package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/images"
	"hyperkube/internal/host/atomicfile"
)

func imageOf(i *images.Image) *runtimeapi.Image {
	out := &runtimeapi.Image{Id: i.ID, RepoTags: i.Tags, RepoDigests: i.Digests, Size: i.Size, Pinned: i.Pinned,
		Spec: &runtimeapi.ImageSpec{Image: i.ID}}
	uid, name := i.Config.UserName()
	if uid != nil {
		out.Uid = &runtimeapi.Int64Value{Value: *uid}
	}
	out.Username = name
	return out
}

// ListImages lists all images, or the image that the filter selects.
func (r *Runtime) ListImages(_ context.Context, req *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	return &runtimeapi.ListImagesResponse{Images: r.listImages(req.GetFilter())}, nil
}

func (r *Runtime) listImages(filter *runtimeapi.ImageFilter) []*runtimeapi.Image {
	if name := filter.GetImage().GetImage(); name != "" {
		if i, err := r.images.Get(name); err == nil {
			return []*runtimeapi.Image{imageOf(i)}
		}
		return nil
	}
	var list []*runtimeapi.Image
	for _, i := range r.images.List() {
		list = append(list, imageOf(i))
	}
	return list
}

// ImageStatus returns the status of an image. The response is empty if the image does not exist.
func (r *Runtime) ImageStatus(_ context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	i, err := r.images.Verify(req.GetImage().GetImage())
	if errors.Is(err, images.ErrNotFound) {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.ImageStatusResponse{Image: imageOf(i)}
	if req.GetVerbose() {
		resp.Info, err = encodeVerbose(imageInfoOf(i))
	}
	return resp, err
}

// PullImage pulls an image. The built-in image is created again if necessary.
func (r *Runtime) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	ref := req.GetImage().GetImage()
	if have, err := r.images.Get(ref); err == nil && have.BuiltIn {
		return &runtimeapi.PullImageResponse{ImageRef: have.ID}, nil
	}
	if r.cfg.BuiltIn != "" && images.IsBuiltIn(ref, r.cfg.BuiltInImage) {
		// The image was removed or lost its layer, and no registry has it.
		i, err := r.images.BuiltIn(ctx, r.cfg.BuiltInImage, r.cfg.BuiltIn)
		if err != nil {
			return nil, err
		}
		return &runtimeapi.PullImageResponse{ImageRef: i.ID}, nil
	}
	a := req.GetAuth()
	auth := images.Auth{Username: a.GetUsername(), Password: a.GetPassword(), Auth: a.GetAuth(),
		IdentityToken: a.GetIdentityToken(), RegistryToken: a.GetRegistryToken()}
	if !images.MatchesServer(ref, a.GetServerAddress()) {
		auth = images.Auth{}
	}
	i, err := r.images.Pull(ctx, ref, auth, r.cfg.Registries)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.PullImageResponse{ImageRef: i.ID}, nil
}

// RemoveImage removes an image with all its names. Containers of the image keep their files.
func (r *Runtime) RemoveImage(_ context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	if err := r.images.Remove(req.GetImage().GetImage(), r.layerUsed); err != nil {
		return nil, err
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// layerUsed returns a function that reports whether containers currently use a layer.
func (r *Runtime) layerUsed() func(string) bool {
	used := map[string]bool{}
	for _, c := range r.allContainers() {
		for _, layer := range c.get().Layers {
			used[layer] = true
		}
	}
	return func(layer string) bool { return used[layer] }
}

// ImageFsInfo returns the disk usage of images and containers. It removes unused layers before it
// measures the image store.
func (r *Runtime) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	if err := r.images.CollectPending(r.layerUsed); err != nil {
		r.log.Warn("removing unused image layers failed", "err", err)
	}
	now := time.Now().UnixNano()
	usage, err := r.images.Usage()
	if err != nil {
		return nil, err
	}
	at := func(dir string, u images.Usage) []*runtimeapi.FilesystemUsage {
		return []*runtimeapi.FilesystemUsage{{Timestamp: now, FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: dir},
			UsedBytes: value(u.Bytes), InodesUsed: value(u.Inodes)}}
	}
	containers, err := images.DiskUsage(r.path("containers"))
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems:     at(r.path("images"), usage),
		ContainerFilesystems: at(r.path("containers"), containers),
	}, nil
}

// ImportImages implements importpb.Server.
func (r *Runtime) ImportImages(ctx context.Context, archive io.Reader) ([]string, error) {
	list, err := r.images.Import(ctx, archive)
	if err != nil {
		return nil, grpcError(err)
	}
	var names []string
	for _, i := range list {
		if len(i.Names) == 0 {
			names = append(names, i.ID)
		}
		names = append(names, i.Names...)
	}
	return names, nil
}

// runtimeName is the runtime name in the Version response.
const runtimeName = "hyperkube"

// Version returns the name and version of the runtime.
func (r *Runtime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	_, version, _ := strings.Cut(r.cfg.BuiltInImage, ":")
	if version == "" {
		version = cmp.Or(r.cfg.Version, "v0.0.0")
	}
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: runtimeName, RuntimeVersion: version, RuntimeApiVersion: "v1"}, nil
}

// Status returns the runtime conditions, which report whether pods can be created.
func (r *Runtime) Status(ctx context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	resp := &runtimeapi.StatusResponse{
		Status:          &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{{Type: "RuntimeReady", Status: true}, r.networkCondition(ctx)}},
		RuntimeHandlers: r.handlerFeatures(),
		Features:        &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true, MountOptions: true},
	}
	if req.GetVerbose() {
		resp.Info = map[string]string{"config": fmt.Sprintf(`{"root":%q,"state":%q,"cgroupVersion":%d,"selinux":%t}`, r.cfg.Root, r.cfg.State, r.cgroupVersion(), r.selinux != nil)}
	}
	return resp, nil
}

func (r *Runtime) cgroupVersion() int {
	if r.cgroups.Unified() {
		return 2
	}
	return 1
}

// RuntimeConfig returns the cgroup driver: cgroupfs, so the kubelet manages cgroups itself.
func (r *Runtime) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}}, nil
}

// UpdateRuntimeConfig sets the node's pod CIDRs and stores them for the next runtime process.
func (r *Runtime) UpdateRuntimeConfig(ctx context.Context, req *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	text := req.GetRuntimeConfig().GetNetworkConfig().GetPodCidr()
	if text == "" {
		return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
	}
	cidrs, err := parseCIDRs(text)
	if err != nil {
		return nil, err
	}
	external, err := r.cniNetwork()
	if err != nil {
		return nil, err
	}
	r.networkSetup.Lock()
	defer r.networkSetup.Unlock()
	if external == nil {
		err = r.network.SetCIDRs(ctx, cidrs)
	} else {
		err = r.network.PlanCIDRs(cidrs) // used when no CNI plugins are configured any more
	}
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Write(atomicfile.File{Path: r.cidrFile(), Data: []byte(text), Mode: 0o600}); err != nil {
		return nil, fmt.Errorf("storing pod CIDR: %w", err)
	}
	if external == nil {
		r.mu.Lock()
		r.networkErr = nil
		r.mu.Unlock()
	}
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}
