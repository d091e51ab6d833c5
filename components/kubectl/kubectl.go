// Package kubectl is the real kubectl, k8s.io/kubectl, as a component.
package kubectl

import (
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/version"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/plugin"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	ourversion "hyperkube/internal/version"
)

// NewCommand returns kubectl for arguments without the program's name, which it is
// then executed with only as the process's own: aliases of a kuberc file give it
// others, which must stand. An unknown subcommand is looked up as a plugin, and
// replaces the process.
func NewCommand(args []string) *cobra.Command {
	// Only a version that is no refinement of the library's is refused; kubectl
	// then tells the library's.
	_ = version.SetDynamicVersion(ourversion.Get().GitVersion)
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	return cmd.NewDefaultKubectlCommandWithArgs(cmd.KubectlOptions{
		PluginHandler: cmd.NewDefaultPluginHandler(plugin.ValidPluginFilenamePrefixes),
		Arguments:     append([]string{"kubectl"}, args...),
		ConfigFlags: genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().
			WithDiscoveryBurst(burst).WithDiscoveryQPS(perSecond).WithWarningPrinter(streams).
			WithWrapConfigFn(adapt),
		IOStreams: streams,
	})
}

// What kubectl may ask of a server: discovery and all else alike.
const (
	perSecond = 50
	burst     = 300
)

// adapt lets a command that waits for many objects ask for them faster than
// client-go's 5 a second, which make deleting a hundred objects take 18 s:
// servers defend themselves. And it is kubectl whatever the program's file is
// called, for servers take the manager of fields from the name of the client.
func adapt(c *rest.Config) *rest.Config {
	c.QPS, c.Burst = perSecond, burst
	if c.UserAgent == "" {
		_, platform, _ := strings.Cut(rest.DefaultKubernetesUserAgent(), "/")
		c.UserAgent = "kubectl/" + platform
	}
	return c
}

// Main runs kubectl and ends the process as kubectl does.
func Main(args []string) {
	if err := run(args); err != nil {
		cmdutil.CheckErr(err)
	}
}

// run makes the process's arguments those of kubectl: several of its parts read
// them there, as what it notes as the cause of a change.
func run(args []string) error {
	os.Args = append([]string{"kubectl"}, args...)
	return cli.RunNoErrOutput(NewCommand(args))
}
