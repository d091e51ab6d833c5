package masters

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/components/cluster/certs"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/identity"
	"hyperkube/internal/kubeconfig"
	"hyperkube/internal/layout"
	"hyperkube/internal/pki"
)

// NewKubeconfig makes the command `kubeconfig`.
func NewKubeconfig() *cobra.Command {
	cmd := &cobra.Command{Use: "kubeconfig", Short: "Make kubeconfigs of further users", Args: cobra.NoArgs}
	cmd.AddCommand(newKubeconfigUser())
	return cmd
}

// kubeconfigUser are the flags of `kubeconfig user`, under kubeadm's names.
type kubeconfigUser struct {
	root, config, name, token string
	groups                    []string
	validity                  time.Duration
}

// certificateValidity is how long a user's certificate is good, if nobody says.
const certificateValidity = 365 * 24 * time.Hour

func newKubeconfigUser() *cobra.Command {
	o := &kubeconfigUser{}
	cmd := &cobra.Command{
		Use: "user", Short: "Print a kubeconfig of a further user", Args: cobra.NoArgs,
		Long: "Print a kubeconfig of a further user, with a new certificate of the cluster's authority, or with a token.\n" +
			"It works on masters and on a machine of `hyperkube up`. What the user may do is for RBAC to say:\n" +
			"hyperkube kubectl create clusterrolebinding NAME --clusterrole=view --user=CLIENT-NAME",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := command.NeedRoot(); err != nil {
				return err
			}
			return o.print(cmd.OutOrStdout(), command.Layout(o.root))
		},
	}
	f := cmd.Flags()
	command.RootFlag(f, &o.root)
	f.StringVar(&o.name, "client-name", "", "Name of the user, which is the common name of the certificate.")
	f.StringSliceVar(&o.groups, "org", nil, "Groups of the user, which are the organizations of the certificate.")
	f.StringVar(&o.token, "token", "", "Bearer token to be put in instead of a certificate.")
	f.DurationVar(&o.validity, "validity-period", certificateValidity, "How long the certificate is good from now.")
	f.StringVar(&o.config, "config", "", "Path of a kubeadm configuration file that says where the API server is; empty asks this machine's kubeconfig.")
	return cmd
}

// print prints the kubeconfig.
func (o *kubeconfigUser) print(out io.Writer, l layout.Node) error {
	if o.name == "" {
		return command.ConfigError(errors.New("--client-name is required"))
	}
	if o.validity <= 0 {
		return command.ConfigError(fmt.Errorf("--validity-period: %s is no time to come", o.validity))
	}
	cfg := kubeconfig.Config{User: o.name, Token: o.token}
	if err := o.way(l, &cfg); err != nil {
		return err
	}
	if o.token == "" {
		ca, err := pki.LoadCA(filepath.Join(certs.OfMachine(l).PKI, "ca"))
		if err != nil {
			return err
		}
		spec := pki.Client(o.name, o.groups...)
		spec.Validity = o.validity
		pair, err := ca.NewPair(spec)
		if err != nil {
			return err
		}
		cfg.Cert, cfg.Key = pair.CertPEM, pair.KeyPEM
	}
	made := kubeconfig.New(cfg)
	made.Clusters[cfg.Name].DisableCompression = false // users are elsewhere
	context := o.name + "@" + cfg.Name
	made.Contexts[context] = made.Contexts[cfg.Name]
	delete(made.Contexts, cfg.Name)
	made.CurrentContext = context
	data, err := clientcmd.Write(*made)
	if err != nil {
		return fmt.Errorf("encoding the kubeconfig: %w", err)
	}
	_, err = out.Write(data)
	return err
}

// way fills in where the API server is and what verifies it.
func (o *kubeconfigUser) way(l layout.Node, cfg *kubeconfig.Config) error {
	path := identity.AdminKubeconfig(l)
	if !layout.Exists(path) {
		return command.PreflightError(errors.New("there is no cluster on this machine: run this on a master"))
	}
	file, err := clientcmd.LoadFromFile(path)
	var admin *rest.Config
	if err == nil {
		admin, err = clientcmd.NewDefaultClientConfig(*file, nil).ClientConfig()
	}
	if err == nil {
		err = rest.LoadTLSFiles(admin)
	}
	if err != nil {
		return fmt.Errorf("reading the administrator's kubeconfig: %w", err)
	}
	cfg.Name = file.Contexts[file.CurrentContext].Cluster
	cfg.Server, cfg.ServerName, cfg.CA = admin.Host, admin.ServerName, admin.CAData
	if o.config == "" {
		return nil
	}
	s, err := readInit(o.config)
	if err != nil {
		return command.ConfigError(err)
	}
	if s.Endpoint == "" && s.Advertise == "" {
		return nil
	}
	m := &master{settings: s}
	if s.Advertise != "" {
		if m.address, err = netip.ParseAddr(s.Advertise); err != nil {
			return command.ConfigError(fmt.Errorf("localAPIEndpoint.advertiseAddress: %w", err))
		}
	}
	cfg.Server = m.server()
	return nil
}
