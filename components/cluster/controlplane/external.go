package controlplane

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/joindiscovery"
	"hyperkube/internal/credentials/kubeconfig"
	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/host/layout"
)

// With an external CA the machine has the certificate of the cluster CA, but not its key. All
// certificates below pki and in kubeconfigs must then be signed elsewhere and copied to the
// machine.
//
// https://kubernetes.io/docs/tasks/administer-cluster/kubeadm/kubeadm-certs/#external-ca-mode

// hasExternalCA reports whether the key of the cluster CA is not on this machine.
func (m credentials) hasExternalCA() bool { return m.pki.CA.Key == nil }

// kubeconfigUsers returns the users of kubeconfigs whose certificates the cluster CA signs, by the name of
// the file without ".conf". kubeadm has no kubeconfig for the proxy.
func (m credentials) kubeconfigUsers() map[string]pki.Spec {
	return map[string]pki.Spec{
		"admin":              pki.Client("kubernetes-admin", joindiscovery.AdminGroup),
		"super-admin":        pki.Client("kubernetes-super-admin", "system:masters"),
		"controller-manager": pki.Client("system:kube-controller-manager"),
		"scheduler":          pki.Client("system:kube-scheduler"),
		"proxy":              pki.Client("system:kube-proxy"),
		"kubelet":            pki.Node(m.identity.NodeName),
	}
}

// requiredKubeconfigs returns the names of the kubeconfigs that must exist if the CA is external, in
// order.
func (m credentials) requiredKubeconfigs() []string {
	names := []string{"admin", "controller-manager", "scheduler", "proxy", "kubelet"}
	if !m.additional {
		names = append(names, "super-admin")
	}
	return names
}

// storedPair returns the path, without extension, of the client certificate and key from which the kubeconfig with
// this name is written.
func (m credentials) storedPair(name string) string {
	return filepath.Join(m.layout.Data, "kubeconfig-keys", name)
}

// withMissingKubeconfigs adds a hint how to create them to an error about missing certificates and, if the CA is
// external, also the kubeconfigs that are missing. It returns other errors unchanged.
func (m credentials) withMissingKubeconfigs(err error) error {
	var missing *pki.MissingError
	if !errors.As(err, &missing) {
		return err
	}
	if clusterconfig.HasExternalCA(m.layout) {
		for _, name := range m.requiredKubeconfigs() {
			if path := m.kubeconfigPath(name); !layout.Exists(path) && !slices.Contains(missing.Files, path) {
				missing.Files = append(missing.Files, path)
			}
		}
	}
	return command.PreflightError(fmt.Errorf("%w: `hyperkube certs generate-csr` writes keys and certificate signing requests", err))
}

// importKubeconfigs copies the client certificates and keys of kubeconfigs that an external CA has signed to the paths
// of storedPair, from which the kubeconfigs are later written again. It does nothing if the CA key is on this machine.
// A missing kubeconfig is an error, unless its certificate was stored before or the kubelet has a newer one.
func (m credentials) importKubeconfigs() error {
	if !m.hasExternalCA() {
		return nil
	}
	var missing []string
	for _, name := range m.requiredKubeconfigs() {
		cert, key, err := kubeconfig.ClientPair(m.kubeconfigPath(name))
		if err == nil && len(key) > 0 {
			if err := pki.WritePair(m.storedPair(name), cert, key); err != nil {
				return err
			}
			continue
		}
		stored := m.storedPair(name) + ".crt"
		if name == "kubelet" {
			stored = m.currentKubeletPair()
		}
		if !layout.Exists(stored) {
			missing = append(missing, m.kubeconfigPath(name))
		}
	}
	if len(missing) > 0 {
		return m.withMissingKubeconfigs(&pki.MissingError{Files: missing})
	}
	return nil
}

// currentKubeletPair returns the path of the kubelet's current client certificate and key.
func (m credentials) currentKubeletPair() string {
	return filepath.Join(m.layout.Kubelet, "pki", "kubelet-client-current.pem")
}

// kubeletPair returns the client certificate and key with which the kubelet first authenticates. The result is empty
// if the CA is external and the kubelet has already requested a newer certificate.
func (m credentials) kubeletPair() (*pki.Pair, error) {
	if !m.hasExternalCA() {
		return m.pki.CA.NewPair(pki.Node(m.identity.NodeName))
	}
	pair, err := m.pki.CA.EnsurePair(m.storedPair("kubelet"), pki.Node(m.identity.NodeName))
	if err != nil && layout.Exists(m.currentKubeletPair()) {
		return &pki.Pair{}, nil // the kubelet has requested a newer one
	}
	return pair, err
}

// newCertsGenerateCSR returns the command `certs generate-csr`, which writes keys and certificate signing requests for
// an external CA.
func newCertsGenerateCSR(root *string) *cobra.Command {
	var config, certDir, kubeconfigDir string
	cmd := &cobra.Command{
		Use: "generate-csr", Short: "Generate keys and certificate signing requests", Args: cobra.NoArgs,
		Long: "Generate keys and certificate signing requests (CSRs) for an external CA: FILE.key and FILE.csr for each certificate, and\n" +
			"NAME.conf, which contains the key, and NAME.conf.csr for each kubeconfig. Save each signed certificate as FILE.crt beside its\n" +
			"key, or in base64 as client-certificate-data of the kubeconfig, and ca.crt in the directory of certificates. Then run\n" +
			"`hyperkube init`.",
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
			m := &controlPlaneNode{layout: l, settings: settings}
			if err := m.complete(); err != nil {
				return err
			}
			if certDir == "" {
				certDir = m.pkiDir()
			}
			if kubeconfigDir == "" {
				kubeconfigDir = l.Etc
			}
			return m.credentials().writeRequests(cmd.OutOrStdout(), certDir, kubeconfigDir)
		},
	}
	f := cmd.Flags()
	f.StringVar(&config, "config", "", "Path to a kubeadm configuration file (InitConfiguration and ClusterConfiguration of v1beta4).")
	f.StringVar(&certDir, "cert-dir", "", "The path where to save the certificates and keys. If empty, the directory of init is used.")
	f.StringVar(&kubeconfigDir, "kubeconfig-dir", "", "The path where to save the kubeconfig files. If empty, the directory of init is used.")
	return cmd
}

// writeRequests writes keys and certificate signing requests, which an external CA signs, for all certificates of this
// control plane node: to certDir, and for kubeconfigs to kubeconfigDir. It refuses to replace an existing kubeconfig.
func (m credentials) writeRequests(out io.Writer, certDir, kubeconfigDir string) error {
	names := m.requiredKubeconfigs()
	slices.Sort(names)
	for _, name := range names {
		path := filepath.Join(kubeconfigDir, name+".conf")
		if layout.Exists(path) {
			return command.ConfigError(fmt.Errorf("%s already exists: it is not replaced", path))
		}
	}
	cfg, err := m.pkiConfig()
	if err != nil {
		return err
	}
	certificates, err := pki.Requests(certDir, cfg)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "[generate-csr] Keys and certificate signing requests in %s: %s\n", certDir, strings.Join(certificates, ", "))
	ca, err := os.ReadFile(filepath.Join(certDir, "ca.crt"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("reading CA certificate: %w", err)
	}
	users := m.kubeconfigUsers()
	for _, name := range names {
		key, request, err := pki.Request(nil, users[name])
		if err != nil {
			return err
		}
		server := m.localURL()
		if strings.HasSuffix(name, "admin") {
			server = m.server()
		}
		path := filepath.Join(kubeconfigDir, name+".conf")
		if err := kubeconfig.Write(path, kubeconfig.Config{Name: m.settings.clusterName(), User: users[name].CommonName, Server: server, CA: ca, Key: key}); err != nil {
			return err
		}
		if err := os.WriteFile(path+".csr", request, 0o644); err != nil {
			return fmt.Errorf("writing certificate signing request: %w", err)
		}
	}
	fmt.Fprintf(out, "[generate-csr] Kubeconfigs and certificate signing requests in %s: %s\n", kubeconfigDir, strings.Join(names, ", "))
	return nil
}
