package images

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// serviceAccountDir is the path, relative to a container's root, at which the kubelet mounts the service account token.
const serviceAccountDir = "var/run/secrets/kubernetes.io/serviceaccount"

// MountPoints returns the name of a layer to put below all layers of an image. It contains the mount points that every
// container needs, because images often lack them. Otherwise the writable layer of each container would have to create
// and delete a dozen inodes. Files of the image, in particular symlinks, take precedence.
//
// The layer is created if it does not exist. It is garbage collected like any other layer, so the caller must use Hold
// until its container counts as a user of the layer. serviceAccount adds the directory of the token, which should not
// exist in containers without a token.
func (s *Store) MountPoints(ctx context.Context, serviceAccount bool) (layer string, err error) {
	layer, dirs := "mountpoints", []string{"proc", "sys", "dev", "etc"}
	if serviceAccount {
		layer, dirs = "mountpoints-token", append(dirs, serviceAccountDir)
	}
	err = s.layers.create(ctx, layer, false, func(root string) error {
		for _, dir := range dirs {
			if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
				return err
			}
		}
		for _, file := range []string{"etc/hosts", "etc/hostname", "etc/resolv.conf"} {
			if err := os.WriteFile(filepath.Join(root, file), nil, 0o644); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("creating layer of mount points: %w", s.diskFull(err))
	}
	return layer, nil
}
