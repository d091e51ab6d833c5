package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/progress"
	"hyperkube/components/cluster/teardown"
	"hyperkube/components/runtime/runtimeclient"
	"hyperkube/internal/host/layout"
)

// newImage returns the command `image`, which imports, lists, pulls and removes images in the container runtime of this
// machine.
func newImage() *cobra.Command {
	var root string
	cmd := &cobra.Command{Use: "image", Short: "Import, list, pull and remove images"}
	command.RootFlag(cmd.PersistentFlags(), &root)
	with := func(run func(ctx context.Context, cmd *cobra.Command, cri *runtimeclient.Client, args []string) error) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, args []string) error {
			if err := command.RequireRoot(); err != nil {
				return err
			}
			cri, err := runtimeclient.Dial(command.Layout(root).RuntimeSocket())
			if err != nil {
				return err
			}
			defer cri.Close()
			return run(cmd.Context(), cmd, cri, args)
		}
	}
	cmd.AddCommand(
		&cobra.Command{Use: "ls", Aliases: []string{"list"}, Short: "List images", Args: cobra.NoArgs, RunE: with(listImages)},
		&cobra.Command{Use: "rm IMAGE...", Aliases: []string{"remove"}, Short: "Remove images", Args: cobra.MinimumNArgs(1), RunE: with(removeImages)},
		&cobra.Command{Use: "pull IMAGE...", Short: "Pull images", Args: cobra.MinimumNArgs(1), RunE: with(pullImages)},
		&cobra.Command{Use: "import FILE...", Short: "Import images from Docker or OCI archives", Args: cobra.MinimumNArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
			if err := with(importImages)(cmd, args); err != nil {
				return err
			}
			return importToAdditionalNodes(cmd.Context(), command.Layout(root), args)
		}},
	)
	return cmd
}

// listImages prints a line for each name of each image.
func listImages(ctx context.Context, cmd *cobra.Command, cri *runtimeclient.Client, _ []string) error {
	images, err := cri.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return fmt.Errorf("listing images: %w", err)
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "IMAGE\tID\tSIZE\tPINNED")
	for _, image := range images.Images {
		names := image.RepoTags
		if len(names) == 0 {
			names = image.RepoDigests
		}
		if len(names) == 0 {
			names = []string{"<none>"}
		}
		for _, name := range names {
			fmt.Fprintf(w, "%s\t%.12s\t%.1f MB\t%v\n", name, strings.TrimPrefix(image.Id, "sha256:"), float64(image.Size)/1e6, image.Pinned)
		}
	}
	return w.Flush()
}

// removeImages removes the images args. It stops at the first error.
func removeImages(ctx context.Context, cmd *cobra.Command, cri *runtimeclient.Client, args []string) error {
	for _, name := range args {
		if _, err := cri.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: name}}); err != nil {
			return fmt.Errorf("removing %s: %w", name, err)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "removed %s\n", name)
	}
	return nil
}

// pullImages pulls the images args from their registries and shows the progress. It stops at the first error.
func pullImages(ctx context.Context, cmd *cobra.Command, cri *runtimeclient.Client, args []string) error {
	for _, name := range args {
		bar := progress.NewBar(cmd.OutOrStdout(), "pulling "+name, 0)
		id, err := cri.Pull(ctx, name, bar.Set)
		bar.Close()
		if err != nil {
			return fmt.Errorf("pulling %s: %w", name, err)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "pulled %s as %s\n", name, id)
	}
	return nil
}

// importImages imports the images in the archives args, which the container runtime reads. It stops at the first error.
func importImages(ctx context.Context, cmd *cobra.Command, cri *runtimeclient.Client, args []string) error {
	for _, file := range args {
		path, err := filepath.Abs(file)
		if err != nil {
			return fmt.Errorf("importing %s: %w", file, err)
		}
		names, err := importFile(ctx, cmd, cri, path)
		if err != nil {
			return fmt.Errorf("importing %s: %w", file, err)
		}
		for _, name := range names {
			fmt.Fprintf(cmd.OutOrStdout(), "imported %s\n", name)
		}
	}
	return nil
}

// importFile imports the images in an archive and shows the progress.
func importFile(ctx context.Context, cmd *cobra.Command, cri *runtimeclient.Client, path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the image archive: %w", err)
	}
	defer f.Close()
	var size int64
	if info, err := f.Stat(); err == nil {
		size = info.Size()
	}
	bar := progress.NewBar(cmd.OutOrStdout(), "importing "+filepath.Base(path), size)
	defer bar.Close()
	return cri.Import(ctx, bar.Reader(f))
}

// importToAdditionalNodes imports the images to the additional nodes of this machine whose container runtime runs.
func importToAdditionalNodes(ctx context.Context, l layout.Node, files []string) error {
	return teardown.EachAdditionalNode(l, func(i int) error {
		n := l.Numbered(i)
		if pid, err := node.RuntimePID(n); err != nil || pid == 0 {
			return err
		}
		cri, err := runtimeclient.Dial(n.RuntimeSocket())
		if err != nil {
			return err
		}
		defer cri.Close()
		for _, file := range files {
			path, err := filepath.Abs(file)
			if err == nil {
				_, err = cri.ImportFile(ctx, path)
			}
			if err != nil {
				return fmt.Errorf("importing %s: %w", file, err)
			}
		}
		return nil
	})
}
