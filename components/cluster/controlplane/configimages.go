package controlplane

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/cluster/command"
	"hyperkube/internal/base/version"
)

// controlPlaneImages is the JSON output of `config images list`, in the format of kubeadm.
type controlPlaneImages struct {
	metav1.TypeMeta `json:",inline"`
	Images          []string `json:"images"`
}

// newConfigImages returns the command `config images`. All components run from one image, which is
// this program itself. Users that mirror or pull images beforehand therefore have nothing to do.
func newConfigImages() *cobra.Command {
	cmd := &cobra.Command{Use: "images", Short: "Interact with the container image of the control plane", Args: cobra.NoArgs}
	var file string
	cmd.PersistentFlags().StringVar(&file, "config", "", "Path to a kubeadm configuration file. The file is validated; it does not change the image.")
	check := func() error {
		if file == "" {
			return nil
		}
		_, err := readInit(file)
		if err != nil {
			return command.ConfigError(err)
		}
		return nil
	}
	var output command.Output
	list := &cobra.Command{
		Use: "list", Short: "Print a list of images that the control plane and the add-ons use", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := check(); err != nil {
				return err
			}
			all := controlPlaneImages{
				TypeMeta: metav1.TypeMeta{Kind: "Images", APIVersion: "output.kubeadm.k8s.io/v1alpha3"},
				Images:   []string{version.Image()},
			}
			return output.Write(cmd.OutOrStdout(), all, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, version.Image())
				return err
			})
		},
	}
	output.Flag(list)
	pull := &cobra.Command{
		Use: "pull", Short: "Pull images; does nothing, because the image is built in", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := check(); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "[config/images] Image %s is built in: nothing to pull\n", version.Image())
			return nil
		},
	}
	cmd.AddCommand(list, pull)
	return cmd
}
