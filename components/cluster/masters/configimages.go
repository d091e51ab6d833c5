package masters

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/cluster/command"
	"hyperkube/internal/version"
)

// controlPlaneImages is how kubeadm tells programs which images masters need.
type controlPlaneImages struct {
	metav1.TypeMeta `json:",inline"`
	Images          []string `json:"images"`
}

// newConfigImages makes the command `config images`. All of a cluster is one image, which
// is this program and comes with it: whoever mirrors images or pulls them beforehand
// finds that nothing is left to do.
func newConfigImages() *cobra.Command {
	cmd := &cobra.Command{Use: "images", Short: "Tell which images the control plane and the add-ons need", Args: cobra.NoArgs}
	var file string
	cmd.PersistentFlags().StringVar(&file, "config", "", "Path of a kubeadm configuration file: it is checked, and changes no image.")
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
	var form command.Output
	list := &cobra.Command{
		Use: "list", Short: "Print the images that the control plane and the add-ons need", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := check(); err != nil {
				return err
			}
			all := controlPlaneImages{
				TypeMeta: metav1.TypeMeta{Kind: "Images", APIVersion: "output.kubeadm.k8s.io/v1alpha3"},
				Images:   []string{version.Image()},
			}
			return form.Write(cmd.OutOrStdout(), all, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, version.Image())
				return err
			})
		},
	}
	form.Flag(list)
	pull := &cobra.Command{
		Use: "pull", Short: "Tell that no image has to be pulled", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := check(); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is this program and comes with it: nothing is pulled\n", version.Image())
			return nil
		},
	}
	cmd.AddCommand(list, pull)
	return cmd
}
