package images

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// serviceAccountDir is where most pods have their token.
const serviceAccountDir = "var/run/secrets/kubernetes.io/serviceaccount"

// MountPoints returns a layer to put below all of an image's own: what every
// container has something mounted at, for images that lack it. Without it each
// container's own changes would begin with these, a dozen inodes to make and to
// remove. What the image has itself, a link above all, counts more.
//
// It is made if it is not there, and collected like any other: the caller
// holds the store, or says that it is used. serviceAccount adds the folder of
// the token, which containers without one are not to see.
func (s *Store) MountPoints(ctx context.Context, serviceAccount bool) (layer string, err error) {
	layer, dirs := "mountpoints", []string{"proc", "sys", "dev", "etc"}
	if serviceAccount {
		layer, dirs = "mountpoints-token", append(dirs, serviceAccountDir)
	}
	err = s.makeLayer(ctx, layer, false, func(root string) error {
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
		return "", fmt.Errorf("making the layer of mount points: %w", err)
	}
	return layer, nil
}
