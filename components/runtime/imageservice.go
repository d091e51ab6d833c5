//go:build cgo

package runtime

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/images"
)

// imageOf converts an image of the store to its CRI form.
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

// imageService implements the CRI image service.
type imageService struct {
	runtimeapi.UnimplementedImageServiceServer

	*host
	images     *images.Store
	inventory  *inventory
	registries images.Registries
	// builtIn is the program in the root directory of the image named builtInImage. Both are empty
	// without a built-in image.
	builtIn, builtInImage string
}

// ListImages lists all images, or the image that the filter selects.
func (is *imageService) ListImages(_ context.Context, req *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	return &runtimeapi.ListImagesResponse{Images: is.list(req.GetFilter())}, nil
}

func (is *imageService) list(filter *runtimeapi.ImageFilter) []*runtimeapi.Image {
	if name := filter.GetImage().GetImage(); name != "" {
		if i, err := is.images.Get(name); err == nil {
			return []*runtimeapi.Image{imageOf(i)}
		}
		return nil
	}
	var list []*runtimeapi.Image
	for _, i := range is.images.List() {
		list = append(list, imageOf(i))
	}
	return list
}

// ImageStatus returns the status of an image. The response is empty if the store does not contain the image. An image
// with missing layers is removed from the store, so that the kubelet pulls it again.
func (is *imageService) ImageStatus(_ context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	i, err := is.images.Verify(req.GetImage().GetImage())
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

// PullImage pulls an image from its registry or a mirror into the store and returns its ID. The built-in image is never
// pulled but created from Config.BuiltIn. The credentials of the request are only used if they are for the registry of
// the image.
func (is *imageService) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	return is.pull(ctx, req, nil)
}

// PullWithProgress is PullImage without credentials for the command `hyperkube image pull`: report receives how many
// bytes of the total have been downloaded. Errors are gRPC statuses.
func (is *imageService) PullWithProgress(ctx context.Context, ref string, report func(done, total int64)) (id string, err error) {
	resp, err := is.pull(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}, report)
	return resp.GetImageRef(), grpcError(err)
}

// pull implements PullImage. report receives the progress; it may be nil.
func (is *imageService) pull(ctx context.Context, req *runtimeapi.PullImageRequest, report images.Report) (*runtimeapi.PullImageResponse, error) {
	ref := req.GetImage().GetImage()
	if have, err := is.images.Get(ref); err == nil && have.BuiltIn {
		return &runtimeapi.PullImageResponse{ImageRef: have.ID}, nil
	}
	if is.builtIn != "" && images.IsBuiltIn(ref, is.builtInImage) {
		// The image was removed or lost its layer, and no registry has it.
		i, err := is.images.BuiltIn(ctx, is.builtInImage, is.builtIn)
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
	i, err := is.images.Pull(ctx, ref, auth, is.registries, report)
	if err != nil {
		is.freeSpace(err)
		return nil, err
	}
	return &runtimeapi.PullImageResponse{ImageRef: i.ID}, nil
}

// freeSpace removes unused layers if err, the error of a pull or import, means that the disk is full. Otherwise the
// layers that were unpacked before the error would occupy the disk. For other errors it does nothing.
func (is *imageService) freeSpace(err error) {
	if !errors.Is(err, unix.ENOSPC) {
		return
	}
	if err := is.images.CollectPending(is.inventory.layerUsed); err != nil {
		is.log.Warn("removing unused image layers failed; they use disk space until the container runtime removes them, at its next start at the latest", "err", err)
	}
}

// RemoveImage removes an image with all its names. Layers that containers use stay until these containers are removed.
// It is not an error if the image does not exist.
func (is *imageService) RemoveImage(_ context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	if err := is.images.Remove(req.GetImage().GetImage(), is.inventory.layerUsed); err != nil {
		return nil, err
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// ImageFsInfo returns the disk usage of images and of the containers' writable layers, which the kubelet compares with
// its thresholds for image garbage collection and eviction. It first removes unused layers that earlier removals have
// left.
func (is *imageService) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	if err := is.images.CollectPending(is.inventory.layerUsed); err != nil {
		is.log.Warn("removing unused image layers failed; they use disk space until the container runtime removes them, at its next start at the latest", "err", err)
	}
	now := time.Now().UnixNano()
	usage, err := is.images.Usage()
	if err != nil {
		return nil, err
	}
	at := func(dir string, u images.Usage) []*runtimeapi.FilesystemUsage {
		return []*runtimeapi.FilesystemUsage{{Timestamp: now, FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: dir},
			UsedBytes: value(u.Bytes), InodesUsed: value(u.Inodes)}}
	}
	containers, err := images.DiskUsage(is.path("containers"))
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems:     at(is.path("images"), usage),
		ContainerFilesystems: at(is.path("containers"), containers),
	}, nil
}

// ImportImages imports the images in an archive of `docker save` or an OCI layout, for `hyperkube` commands that load
// images. It returns the names of the images, or the IDs of those without a name. Errors are gRPC statuses.
func (is *imageService) ImportImages(ctx context.Context, archive io.Reader) ([]string, error) {
	list, err := is.images.Import(ctx, archive)
	if err != nil {
		is.freeSpace(err)
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

// importArchives imports all archives (*.tar) in dir, which is Config.ImagesDir, in the background after start. It does
// nothing if dir is empty. An archive that cannot be imported is logged and skipped.
func (is *imageService) importArchives(ctx context.Context, dir string) {
	if dir == "" {
		return
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.tar"))
	if err != nil {
		is.log.Warn("listing image archives failed; none of them is imported, retrying at the next start of the container runtime", "directory", dir, "err", err)
		return
	}
	for _, file := range files {
		list, err := is.images.ImportFile(ctx, file)
		if err != nil {
			is.freeSpace(err)
			is.log.Warn("importing image archive failed; its images are not available unless they are pulled, retrying at the next start of the container runtime", "file", file, "err", err)
			continue
		}
		for _, image := range list {
			is.log.Info("image imported from archive", "file", file, "image", image.ID, "names", image.Names)
		}
	}
}
