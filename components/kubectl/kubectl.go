// Package kubectl runs upstream's kubectl, k8s.io/kubectl, as a component.
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

	ourversion "hyperkube/internal/base/version"
)

// NewCommand returns the kubectl command for args, which do not include the program name. Execute
// the command with the arguments of the process (os.Args): aliases in a kuberc file replace these.
// An unknown subcommand is looked up as a plugin, which replaces the process.
func NewCommand(args []string) *cobra.Command {
	// An error means that our version is not derived from the library's version; kubectl then
	// reports the library's version.
	_ = version.SetDynamicVersion(ourversion.Get().GitVersion)
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	return cmd.NewDefaultKubectlCommandWithArgs(cmd.KubectlOptions{
		PluginHandler: cmd.NewDefaultPluginHandler(plugin.ValidPluginFilenamePrefixes),
		Arguments:     append([]string{"kubectl"}, args...),
		ConfigFlags: genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().
			WithDiscoveryBurst(burst).WithDiscoveryQPS(qps).WithWarningPrinter(streams).
			WithWrapConfigFn(adaptConfig),
		IOStreams: streams,
	})
}

// Client-side rate limits of kubectl, in requests per second and in requests that may exceed the
// rate for a short time.
const (
	qps   = 50
	burst = 300
)

// adaptConfig raises the client-side rate limit above client-go's default of 5 requests per second, with which
// deleting a hundred objects takes 18 s; API servers have their own flow control. Unless a user agent is configured,
// it also sets it to kubectl, whatever the program file is called, because API servers derive the field manager from
// it. It changes and returns c.
func adaptConfig(c *rest.Config) *rest.Config {
	c.QPS, c.Burst = qps, burst
	if c.UserAgent == "" {
		_, platform, _ := strings.Cut(rest.DefaultKubernetesUserAgent(), "/")
		c.UserAgent = "kubectl/" + platform
	}
	return c
}

// Main runs kubectl with args, which do not include the program name. If kubectl fails, it prints
// the error and exits the process with kubectl's exit code.
func Main(args []string) {
	if err := run(args); err != nil {
		cmdutil.CheckErr(err)
	}
}

// run runs kubectl with args, which do not include the program name, and returns its error without printing it. It
// sets os.Args first, because several parts of kubectl read os.Args, for example for the change-cause annotation.
func run(args []string) error {
	os.Args = append([]string{"kubectl"}, args...)
	return cli.RunNoErrOutput(NewCommand(args))
}
