package crifake

import (
	"context"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ImageStatus returns the image with that tag or ID, or an empty response if there is none.
func (r *Runtime) ImageStatus(_ context.Context, req *runtimeapi.ImageStatusRequest, _ ...grpc.CallOption) (*runtimeapi.ImageStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := req.Image.Image
	for tag, i := range r.images {
		if tag == name || i.Id == name {
			return &runtimeapi.ImageStatusResponse{Image: i}, nil
		}
	}
	return &runtimeapi.ImageStatusResponse{}, nil
}

// PullImage records the call and adds an image of 1 MiB with that tag.
func (r *Runtime) PullImage(_ context.Context, req *runtimeapi.PullImageRequest, _ ...grpc.CallOption) (*runtimeapi.PullImageResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := req.Image.Image
	if err := r.recordCall("PullImage", name); err != nil {
		return nil, err
	}
	r.images[name] = &runtimeapi.Image{Id: "sha256:" + name, RepoTags: []string{name}, Size: 1 << 20}
	return &runtimeapi.PullImageResponse{ImageRef: "sha256:" + name}, nil
}

// ListImages records the call and returns all images, ignoring the filter.
func (r *Runtime) ListImages(context.Context, *runtimeapi.ListImagesRequest, ...grpc.CallOption) (*runtimeapi.ListImagesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.recordCall("ListImages", ""); err != nil {
		return nil, err
	}
	out := &runtimeapi.ListImagesResponse{}
	for _, i := range r.images {
		out.Images = append(out.Images, i)
	}
	return out, nil
}

// RemoveImage records the call and removes the image with that ID, also if Fail has set an error.
func (r *Runtime) RemoveImage(_ context.Context, req *runtimeapi.RemoveImageRequest, _ ...grpc.CallOption) (*runtimeapi.RemoveImageResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for tag, i := range r.images {
		if i.Id == req.Image.Image {
			delete(r.images, tag)
		}
	}
	return &runtimeapi.RemoveImageResponse{}, r.recordCall("RemoveImage", req.Image.Image)
}

// ListPodSandboxStats returns no statistics.
func (r *Runtime) ListPodSandboxStats(context.Context, *runtimeapi.ListPodSandboxStatsRequest, ...grpc.CallOption) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	return &runtimeapi.ListPodSandboxStatsResponse{}, nil
}

// ImageFsInfo returns no file systems.
func (r *Runtime) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest, ...grpc.CallOption) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{}, nil
}
