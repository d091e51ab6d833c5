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
	"hyperkube/internal/atomicfile"
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

// ListImages lists the images, or the one that the filter names.
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

// ImageStatus describes an image; none is an empty answer.
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
		resp.Info, err = verbose(imageInfoOf(i))
	}
	return resp, err
}

// PullImage pulls an image. The built-in one is here already, or made again.
func (r *Runtime) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	ref := req.GetImage().GetImage()
	if have, err := r.images.Get(ref); err == nil && have.BuiltIn {
		return &runtimeapi.PullImageResponse{ImageRef: have.ID}, nil
	}
	if r.cfg.BuiltIn != "" && images.NamesBuiltIn(ref, r.cfg.BuiltInImage) {
		// It was removed, or has lost its layer; no registry has it.
		i, err := r.images.BuiltIn(ctx, r.cfg.BuiltInImage, r.cfg.BuiltIn)
		if err != nil {
			return nil, err
		}
		return &runtimeapi.PullImageResponse{ImageRef: i.ID}, nil
	}
	a := req.GetAuth()
	auth := images.Auth{Username: a.GetUsername(), Password: a.GetPassword(), Auth: a.GetAuth(),
		IdentityToken: a.GetIdentityToken(), RegistryToken: a.GetRegistryToken()}
	if !images.AtServer(ref, a.GetServerAddress()) {
		auth = images.Auth{}
	}
	i, err := r.images.Pull(ctx, ref, auth, r.cfg.Registries)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.PullImageResponse{ImageRef: i.ID}, nil
}

// RemoveImage removes an image with all its names. Containers of it keep their
// files.
func (r *Runtime) RemoveImage(_ context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	if err := r.images.Remove(req.GetImage().GetImage(), r.layerUsed); err != nil {
		return nil, err
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// layerUsed tells which layers containers use now.
func (r *Runtime) layerUsed() func(string) bool {
	used := map[string]bool{}
	for _, c := range r.allContainers() {
		for _, layer := range c.get().Layers {
			used[layer] = true
		}
	}
	return func(layer string) bool { return used[layer] }
}

// ImageFsInfo measures images and containers. The images are walked, after what of
// them nobody needs was removed.
func (r *Runtime) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	if err := r.images.CollectLeft(r.layerUsed); err != nil {
		r.log.Warn("layers that nobody needs cannot be removed", "error", err)
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
	own, err := images.DiskUsage(r.path("containers"))
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems:     at(r.path("images"), usage),
		ContainerFilesystems: at(r.path("containers"), own),
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

// runtimeName is what Version tells.
const runtimeName = "hyperkube"

// Version tells who we are.
func (r *Runtime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	_, version, _ := strings.Cut(r.cfg.BuiltInImage, ":")
	if version == "" {
		version = cmp.Or(r.cfg.Version, "v0.0.0")
	}
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: runtimeName, RuntimeVersion: version, RuntimeApiVersion: "v1"}, nil
}

// Status tells whether pods can be made.
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

// RuntimeConfig tells that the kubelet is to write cgroups itself.
func (r *Runtime) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}}, nil
}

// UpdateRuntimeConfig takes the node's pod CIDRs, and keeps them for our
// successor.
func (r *Runtime) UpdateRuntimeConfig(ctx context.Context, req *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	text := req.GetRuntimeConfig().GetNetworkConfig().GetPodCidr()
	if text == "" {
		return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
	}
	cidrs, err := parseCIDRs(text)
	if err != nil {
		return nil, err
	}
	external, err := r.external()
	if err != nil {
		return nil, err
	}
	r.networkSetup.Lock()
	defer r.networkSetup.Unlock()
	if external == nil {
		err = r.network.SetCIDRs(ctx, cidrs)
	} else {
		err = r.network.PlanCIDRs(cidrs) // for when there are no plugins any more
	}
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Write(atomicfile.File{Path: r.cidrFile(), Data: []byte(text), Mode: 0o600}); err != nil {
		return nil, fmt.Errorf("keeping the pod CIDR: %w", err)
	}
	if external == nil {
		r.mu.Lock()
		r.networkErr = nil
		r.mu.Unlock()
	}
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}
