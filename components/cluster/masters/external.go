package masters

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/identity"
	"hyperkube/components/cluster/trust"
	"hyperkube/internal/kubeconfig"
	"hyperkube/internal/layout"
	"hyperkube/internal/pki"
)

// A machine that has the certificate of the cluster's authority and not its key is a master
// by what somebody else has signed: certificates in pki, and kubeconfigs with theirs.
//
// https://kubernetes.io/docs/tasks/administer-cluster/kubeadm/kubeadm-certs/#external-ca-mode

// external tells whether the key of the first authority is kept elsewhere.
func (m *master) external() bool { return m.pki.CA.Key == nil }

// users are those of kubeconfigs that the first authority signs for, by the names of the
// files without ".conf". That of the proxy is none of kubeadm's.
func (m *master) users() map[string]pki.Spec {
	return map[string]pki.Spec{
		"admin":              pki.Client("kubernetes-admin", trust.AdminGroup),
		"super-admin":        pki.Client("kubernetes-super-admin", "system:masters"),
		"controller-manager": pki.Client("system:kube-controller-manager"),
		"scheduler":          pki.Client("system:kube-scheduler"),
		"proxy":              pki.Client("system:kube-proxy"),
		"kubelet":            pki.Node(m.identity.NodeName),
	}
}

// broughtNames are the users whose kubeconfigs somebody must have brought, in their order.
func (m *master) broughtNames() []string {
	names := []string{"admin", "controller-manager", "scheduler", "proxy", "kubelet"}
	if !m.further {
		names = append(names, "super-admin")
	}
	return names
}

// keptPair is where the pair of a user is kept from which its kubeconfig is written.
func (m *master) keptPair(name string) string {
	return filepath.Join(m.layout.Data, "kubeconfig-keys", name)
}

// withMissing adds to an error of certificates that are missing the kubeconfigs that are, and
// how to come by either.
func (m *master) withMissing(err error) error {
	var missing *pki.MissingError
	if !errors.As(err, &missing) {
		return err
	}
	if identity.SignsElsewhere(m.layout) {
		for _, name := range m.broughtNames() {
			if path := m.conf(name); !layout.Exists(path) && !slices.Contains(missing.Files, path) {
				missing.Files = append(missing.Files, path)
			}
		}
	}
	return command.PreflightError(fmt.Errorf("%w: `hyperkube certs generate-csr` writes keys, and what is to be signed", err))
}

// bring takes certificates and keys out of the kubeconfigs that somebody has brought, so that
// those are written of them, where nothing can be signed here. The kubelet keeps its own.
func (m *master) bring() error {
	if !m.external() {
		return nil
	}
	var missing []string
	for _, name := range m.broughtNames() {
		cert, key, err := kubeconfig.ClientPair(m.conf(name))
		if err == nil && len(key) > 0 {
			if err := pki.Bring(m.keptPair(name), cert, key); err != nil {
				return err
			}
			continue
		}
		kept := m.keptPair(name) + ".crt"
		if name == "kubelet" {
			kept = m.currentKubeletPair()
		}
		if !layout.Exists(kept) {
			missing = append(missing, m.conf(name))
		}
	}
	if len(missing) > 0 {
		return m.withMissing(&pki.MissingError{Files: missing})
	}
	return nil
}

// currentKubeletPair is where the kubelet has its certificate and key.
func (m *master) currentKubeletPair() string {
	return filepath.Join(m.layout.Kubelet, "pki", "kubelet-client-current.pem")
}

// nodePair is the certificate that the kubelet begins with.
func (m *master) nodePair() (*pki.Pair, error) {
	if !m.external() {
		return m.pki.CA.NewPair(pki.Node(m.identity.NodeName))
	}
	pair, err := m.pki.CA.EnsurePair(m.keptPair("kubelet"), pki.Node(m.identity.NodeName))
	if err != nil && layout.Exists(m.currentKubeletPair()) {
		return &pki.Pair{}, nil // it has gone on to one of its own
	}
	return pair, err
}

// newCertsRequests makes the command `certs generate-csr`.
func newCertsRequests(root *string) *cobra.Command {
	var config, certDir, kubeconfigDir string
	cmd := &cobra.Command{
		Use: "generate-csr", Short: "Write keys and requests for certificates that an authority elsewhere signs", Args: cobra.NoArgs,
		Long: "Write keys and requests for certificates that an authority elsewhere signs: FILE.key and FILE.csr for each certificate,\n" +
			"and for each kubeconfig itself, with its key, and NAME.conf.csr. What is signed goes beside the key as FILE.crt, or into\n" +
			"client-certificate-data of the kubeconfig in base64, with ca.crt into the directory of certificates; then `hyperkube init`.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			l := command.Layout(*root)
			o := &initOptions{config: config}
			settings, err := o.settings(l, func(string) bool { return false })
			if err != nil {
				return command.ConfigError(err)
			}
			if settings.Port == 0 {
				settings.Port = layout.PortAPIServer
			}
			m := &master{layout: l, settings: settings}
			if err := m.decide(); err != nil {
				return err
			}
			if certDir == "" {
				certDir = m.pkiDir()
			}
			if kubeconfigDir == "" {
				kubeconfigDir = l.Etc
			}
			return m.request(cmd.OutOrStdout(), certDir, kubeconfigDir)
		},
	}
	f := cmd.Flags()
	f.StringVar(&config, "config", "", "Path of a kubeadm configuration file: InitConfiguration and ClusterConfiguration of v1beta4.")
	f.StringVar(&certDir, "cert-dir", "", "Directory of keys and certificates; empty: that of init.")
	f.StringVar(&kubeconfigDir, "kubeconfig-dir", "", "Directory of kubeconfigs; empty: that of init.")
	return cmd
}

// request writes keys and requests for all that this master needs.
func (m *master) request(out io.Writer, certDir, kubeconfigDir string) error {
	brought := m.broughtNames()
	slices.Sort(brought)
	for _, name := range brought {
		path := filepath.Join(kubeconfigDir, name+".conf")
		if layout.Exists(path) {
			return command.ConfigError(fmt.Errorf("%s is there already: it is not replaced", path))
		}
	}
	cfg, err := m.pkiConfig()
	if err != nil {
		return err
	}
	names, err := pki.Requests(certDir, cfg)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "keys and requests in %s: %s\n", certDir, strings.Join(names, ", "))
	ca, err := os.ReadFile(filepath.Join(certDir, "ca.crt"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("reading the authority: %w", err)
	}
	users := m.users()
	for _, name := range brought {
		key, request, err := pki.Request(nil, users[name])
		if err != nil {
			return err
		}
		server := m.own()
		if strings.HasSuffix(name, "admin") {
			server = m.server()
		}
		path := filepath.Join(kubeconfigDir, name+".conf")
		if err := kubeconfig.Write(path, kubeconfig.Config{Name: m.settings.clusterName(), User: users[name].CommonName, Server: server, CA: ca, Key: key}); err != nil {
			return err
		}
		if err := os.WriteFile(path+".csr", request, 0o644); err != nil {
			return fmt.Errorf("keeping a request: %w", err)
		}
	}
	fmt.Fprintf(out, "kubeconfigs and requests in %s: %s\n", kubeconfigDir, strings.Join(brought, ", "))
	return nil
}
