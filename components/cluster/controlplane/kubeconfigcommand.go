package controlplane

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

	"hyperkube/components/cluster/certrenewal"
	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/command"
	"hyperkube/internal/credentials/kubeconfig"
	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/host/layout"
)

// NewKubeconfig returns the command `kubeconfig`, which generates kubeconfig files for additional users.
func NewKubeconfig() *cobra.Command {
	cmd := &cobra.Command{Use: "kubeconfig", Short: "Generate kubeconfig files for additional users", Args: cobra.NoArgs}
	cmd.AddCommand(newKubeconfigUser())
	return cmd
}

// kubeconfigUser are the flags of `kubeconfig user`, named like those of kubeadm.
type kubeconfigUser struct {
	root, config, name, token string
	groups                    []string
	validity                  time.Duration
}

// certificateValidity is the default lifetime of a user's certificate.
const certificateValidity = 365 * 24 * time.Hour

// newKubeconfigUser returns the command `kubeconfig user`.
func newKubeconfigUser() *cobra.Command {
	o := &kubeconfigUser{}
	cmd := &cobra.Command{
		Use: "user", Short: "Output a kubeconfig file for an additional user", Args: cobra.NoArgs,
		Long: "Output a kubeconfig file for an additional user, with a new certificate signed by the cluster CA, or with a token.\n" +
			"Run it on a control plane node or on a machine of `hyperkube up`. RBAC decides what the user may do:\n" +
			"hyperkube kubectl create clusterrolebinding NAME --clusterrole=view --user=CLIENT-NAME",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := command.RequireRoot(); err != nil {
				return err
			}
			return o.print(cmd.OutOrStdout(), command.Layout(o.root))
		},
	}
	f := cmd.Flags()
	command.RootFlag(f, &o.root)
	f.StringVar(&o.name, "client-name", "", "The name of the user. It is used as the common name of the certificate.")
	f.StringSliceVar(&o.groups, "org", nil, "The groups of the user. They are used as the organizations of the certificate.")
	f.StringVar(&o.token, "token", "", "The bearer token to embed in the kubeconfig instead of a certificate.")
	f.DurationVar(&o.validity, "validity-period", certificateValidity, "The validity period of the client certificate, from the current time.")
	f.StringVar(&o.config, "config", "", "Path to a kubeadm configuration file with the address of the API server. If not set, the kubeconfig of this machine is used.")
	return cmd
}

// print writes a kubeconfig for the user to out. It contains the configured token, or a new client certificate that
// the cluster CA signs.
func (o *kubeconfigUser) print(out io.Writer, l layout.Node) error {
	if o.name == "" {
		return command.ConfigError(errors.New("--client-name is required"))
	}
	if o.validity <= 0 {
		return command.ConfigError(fmt.Errorf("--validity-period: %s must be positive", o.validity))
	}
	cfg := kubeconfig.Config{User: o.name, Token: o.token}
	if err := o.setCluster(l, &cfg); err != nil {
		return err
	}
	if o.token == "" {
		ca, err := pki.LoadCA(filepath.Join(certrenewal.LocalControlPlane(l).PKI, "ca"))
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
	made.Clusters[cfg.Name].DisableCompression = false // users are on other machines
	context := o.name + "@" + cfg.Name
	made.Contexts[context] = made.Contexts[cfg.Name]
	delete(made.Contexts, cfg.Name)
	made.CurrentContext = context
	data, err := clientcmd.Write(*made)
	if err != nil {
		return fmt.Errorf("encoding kubeconfig: %w", err)
	}
	_, err = out.Write(data)
	return err
}

// setCluster sets the cluster name, server and CA in cfg to those of the administrator's kubeconfig. A configuration
// file with an address of the API server replaces the server. It returns an error if there is no cluster on this
// machine.
func (o *kubeconfigUser) setCluster(l layout.Node, cfg *kubeconfig.Config) error {
	path := clusterconfig.AdminKubeconfig(l)
	if !layout.Exists(path) {
		return command.PreflightError(errors.New("there is no cluster on this machine: run this command on a control plane node"))
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
		return fmt.Errorf("reading administrator kubeconfig: %w", err)
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
	m := &controlPlaneNode{settings: s}
	if s.Advertise != "" {
		if m.address, err = netip.ParseAddr(s.Advertise); err != nil {
			return command.ConfigError(fmt.Errorf("localAPIEndpoint.advertiseAddress: %w", err))
		}
	}
	cfg.Server = m.server()
	return nil
}
