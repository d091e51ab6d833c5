package dashboard

import (
	"fmt"
	"io"
	"net"
	"strconv"

	"github.com/spf13/cobra"

	"hyperkube/internal/credentials/kubeconfig"
)

// options are the flags of the command.
type options struct {
	selection kubeconfig.Selection
	port      int
	noBrowser bool
}

// NewCommand returns the `hyperkube dashboard` command.
func NewCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "dashboard",
		Short: "Open a dashboard of a cluster in the browser",
		Long: `Open a dashboard of a cluster in the browser.

The dashboard is served on the loopback address of this machine until the command is interrupted. It uses the
credentials of the kubeconfig, also for clusters that hyperkube does not run, so it can do what that user can do.
The URL logs in one browser; run the command again for another one.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	cmd.AddCommand(newServe())
	f := cmd.Flags()
	o.selection.AddFlags(f)
	f.IntVar(&o.port, "port", 0, "Port on 127.0.0.1. If 0, a free port is used.")
	f.BoolVar(&o.noBrowser, "no-browser", false, "Print the URL without opening it.")
	return cmd
}

// run serves the dashboard until the context of cmd is canceled.
func (o *options) run(cmd *cobra.Command) error {
	ctx := cmd.Context()
	loader := o.selection.Loader()
	cfg := Config{Context: o.selection.Context}
	raw, err := loader.RawConfig()
	if err != nil {
		return fmt.Errorf("reading kubeconfig: %w", err)
	}
	if cfg.Context == "" {
		cfg.Context = raw.CurrentContext
	}
	if cfg.REST, err = loader.ClientConfig(); err != nil {
		return fmt.Errorf("reading kubeconfig: %w", err)
	}
	cfg.REST.UserAgent = "hyperkube-dashboard"
	cfg.Listener, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(o.port)))
	if err != nil {
		return fmt.Errorf("listening, select another port with --port: %w", err)
	}
	defer cfg.Listener.Close()
	s, err := New(cfg)
	if err != nil {
		return err
	}
	announce(cmd.OutOrStdout(), s, cfg.Context)
	if !o.noBrowser {
		if err := openBrowser(ctx, s.URL()); err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "Open the URL in a browser. It was not opened: %v.\n", err)
		}
	}
	return s.Run(ctx)
}

func announce(w io.Writer, s *Server, context string) {
	fmt.Fprintf(w, "Dashboard of %s: %s\nPress Ctrl+C to stop it.\n", context, s.URL())
}
