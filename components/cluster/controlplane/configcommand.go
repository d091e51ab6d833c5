package controlplane

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/joindiscovery"
	"hyperkube/components/cluster/kubeadmapi"
	kubeletconfig "hyperkube/components/kubelet/config"
	"hyperkube/internal/base/version"
	"hyperkube/internal/host/layout"
)

// NewConfig returns the commands `config migrate` and `config images`.
func NewConfig() []*cobra.Command {
	return []*cobra.Command{newConfigMigrate(), newConfigImages()}
}

// NewConfigDefaults returns the commands `config print init-defaults` and `config print join-defaults`.
func NewConfigDefaults() []*cobra.Command {
	var out []*cobra.Command
	for _, c := range []struct {
		name, short string
		documents   func() []any
	}{
		{"init-defaults", "Print default init configuration, that can be used for 'hyperkube init'", initDefaults},
		{"join-defaults", "Print default join configuration, that can be used for 'hyperkube join'", joinDefaults},
	} {
		out = append(out, &cobra.Command{
			Use: c.name, Short: c.short, Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return printDocuments(cmd.OutOrStdout(), c.documents()) },
		})
	}
	return out
}

// ValidateConfig reports what init and join would refuse in a file, as far as this can be checked without a cluster. It
// returns false and no error if the file has no document of kubeadm.
func ValidateConfig(data []byte) (isKubeadm bool, err error) {
	kinds, err := kubeadmKinds(data)
	if len(kinds) == 0 && err != nil {
		return false, nil
	}
	return true, validateConfig(data)
}

// exampleToken is the placeholder token in printed default configurations.
const exampleToken = "abcdef.0123456789abcdef"

// initDefaults returns the documents that `config print init-defaults` prints.
func initDefaults() []any {
	initConfig := initConfiguration{
		TypeMeta:        metav1.TypeMeta{Kind: "InitConfiguration", APIVersion: kubeadmapi.Version},
		BootstrapTokens: []bootstrapToken{{Token: exampleToken, TTL: &metav1.Duration{Duration: joindiscovery.DefaultTTL}}},
	}
	initConfig.LocalAPIEndpoint.AdvertiseAddress, initConfig.LocalAPIEndpoint.BindPort = "1.2.3.4", layout.PortAPIServer
	initConfig.NodeRegistration.Name = "node"
	cluster := clusterConfiguration{
		TypeMeta:    metav1.TypeMeta{Kind: "ClusterConfiguration", APIVersion: kubeadmapi.Version},
		ClusterName: "kubernetes", KubernetesVersion: version.Get().GitVersion,
	}
	cluster.Networking.ServiceSubnet, cluster.Networking.PodSubnet, cluster.Networking.DNSDomain = "10.96.0.0/16", "10.244.0.0/16", "cluster.local"
	return []any{initConfig, cluster}
}

// joinDefaults returns the document that `config print join-defaults` prints.
func joinDefaults() []any {
	join := joinConfiguration{TypeMeta: metav1.TypeMeta{Kind: "JoinConfiguration", APIVersion: kubeadmapi.Version}}
	join.Discovery.BootstrapToken = &tokenDiscovery{Token: exampleToken, APIServerEndpoint: "kube-apiserver:6443", UnsafeSkipCAVerification: true}
	join.Discovery.TLSBootstrapToken = exampleToken
	join.NodeRegistration.Name = "node"
	return []any{join}
}

// printDocuments writes documents as YAML, separated by "---".
func printDocuments(out io.Writer, documents []any) error {
	for i, d := range documents {
		text, err := yaml.Marshal(d)
		if err != nil {
			return fmt.Errorf("encoding configuration: %w", err)
		}
		if i > 0 {
			fmt.Fprintln(out, "---")
		}
		if _, err := out.Write(text); err != nil {
			return err
		}
	}
	return nil
}

// validateConfig returns an error if init or join would refuse data, the content of a configuration file. It makes
// only those checks that need no cluster.
func validateConfig(data []byte) error {
	kinds, err := kubeadmKinds(data)
	if err != nil {
		return err
	}
	var errs []error
	if kinds["InitConfiguration"] || kinds["ClusterConfiguration"] {
		s, err := decodeInit(data)
		if err == nil {
			err = s.validate()
		}
		errs = append(errs, err)
		delete(kinds, "InitConfiguration")
		delete(kinds, "ClusterConfiguration")
	}
	if kinds["JoinConfiguration"] {
		o := &joinOptions{port: layout.PortAPIServer}
		err := o.decode(data)
		if err == nil && o.discoveryFile == "" { // the file may exist only on the joining machine
			_, err = o.validate()
		}
		errs = append(errs, err)
		delete(kinds, "JoinConfiguration")
	}
	for kind := range kinds {
		errs = append(errs, fmt.Errorf("kind %s is not supported", kind))
	}
	return errors.Join(errs...)
}

// kubeadmKinds returns the kubeadm kinds in a file. It is an error if there is none.
func kubeadmKinds(data []byte) (map[string]bool, error) {
	kinds := map[string]bool{}
	err := eachKubeadm(data, func(meta metav1.TypeMeta, _ []byte) error {
		kinds[meta.Kind] = true
		return nil
	})
	if err == nil && len(kinds) == 0 {
		err = fmt.Errorf("no document of %s found", kubeadmapi.Version)
	}
	return kinds, err
}

// validate returns all errors in the settings that can be detected without changing the machine.
func (s *controlPlaneSettings) validate() error {
	var errs []error
	if s.NodeName != "" {
		errs = append(errs, clusterconfig.CheckNodeName(s.NodeName))
	}
	if s.Advertise != "" {
		if _, err := netip.ParseAddr(s.Advertise); err != nil {
			errs = append(errs, fmt.Errorf("localAPIEndpoint.advertiseAddress: %w", err))
		}
	}
	if s.Port < 1 || s.Port > 65535 {
		errs = append(errs, fmt.Errorf("localAPIEndpoint.bindPort: %d is not a valid port", s.Port))
	}
	if s.Token != "" {
		_, err := joindiscovery.ParseToken(s.Token)
		errs = append(errs, err)
	}
	if s.CertificateKey != "" {
		if _, err := joindiscovery.ParseCertificateKey(s.CertificateKey); err != nil {
			errs = append(errs, fmt.Errorf("certificateKey: %w", err))
		}
	}
	if _, err := kubeletconfig.ParseTaints(s.Taints); err != nil {
		errs = append(errs, fmt.Errorf("nodeRegistration.taints: %w", err))
	}
	if strings.Contains(s.Endpoint, "://") {
		errs = append(errs, fmt.Errorf("controlPlaneEndpoint: %q: expected HOST[:PORT]", s.Endpoint))
	}
	ranges := clusterconfig.Cluster{PodCIDRs: s.PodCIDRs, ServiceCIDRs: s.ServiceCIDRs}
	errs = append(errs, ranges.ChooseRanges(nil))
	return errors.Join(errs...)
}
