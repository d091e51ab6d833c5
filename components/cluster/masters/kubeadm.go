package masters

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"hyperkube/components/cluster/trust"
	"hyperkube/components/kubelet"
	"hyperkube/internal/layout"
	"hyperkube/internal/version"
	"hyperkube/manifests"
)

// The parts of kubeadm's configuration that mean something here. What is not
// among them is refused, so that nobody believes that it has been heeded.
//
// https://kubernetes.io/docs/reference/config-api/kubeadm-config.v1beta4/
type (
	initConfiguration struct {
		metav1.TypeMeta  `json:",inline"`
		BootstrapTokens  []bootstrapToken `json:"bootstrapTokens,omitempty"`
		LocalAPIEndpoint struct {
			AdvertiseAddress string `json:"advertiseAddress,omitempty"`
			BindPort         int    `json:"bindPort,omitempty"`
		} `json:"localAPIEndpoint,omitempty"`
		NodeRegistration nodeRegistration `json:"nodeRegistration,omitempty"`
		CertificateKey   string           `json:"certificateKey,omitempty"`
	}

	bootstrapToken struct {
		Token       string           `json:"token,omitempty"`
		Description string           `json:"description,omitempty"`
		TTL         *metav1.Duration `json:"ttl,omitempty"`
	}

	nodeRegistration struct {
		Name             string          `json:"name,omitempty"`
		Taints           *[]corev1.Taint `json:"taints,omitempty"`
		KubeletExtraArgs []argument      `json:"kubeletExtraArgs,omitempty"`
	}

	argument struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}

	clusterConfiguration struct {
		metav1.TypeMeta      `json:",inline"`
		ClusterName          string `json:"clusterName,omitempty"`
		KubernetesVersion    string `json:"kubernetesVersion,omitempty"`
		ControlPlaneEndpoint string `json:"controlPlaneEndpoint,omitempty"`
		Networking           struct {
			ServiceSubnet string `json:"serviceSubnet,omitempty"`
			PodSubnet     string `json:"podSubnet,omitempty"`
			DNSDomain     string `json:"dnsDomain,omitempty"`
		} `json:"networking,omitempty"`
		APIServer struct {
			ExtraArgs []argument `json:"extraArgs,omitempty"`
			CertSANs  []string   `json:"certSANs,omitempty"`
		} `json:"apiServer,omitempty"`
		ControllerManager component `json:"controllerManager,omitempty"`
		Scheduler         component `json:"scheduler,omitempty"`
		Etcd              struct {
			Local *component `json:"local,omitempty"`
		} `json:"etcd,omitempty"`
	}

	component struct {
		ExtraArgs []argument `json:"extraArgs,omitempty"`
	}

	joinConfiguration struct {
		metav1.TypeMeta  `json:",inline"`
		NodeRegistration nodeRegistration `json:"nodeRegistration,omitempty"`
		Discovery        struct {
			BootstrapToken    *tokenDiscovery `json:"bootstrapToken,omitempty"`
			TLSBootstrapToken string          `json:"tlsBootstrapToken,omitempty"`
		} `json:"discovery,omitempty"`
		ControlPlane *struct {
			LocalAPIEndpoint struct {
				AdvertiseAddress string `json:"advertiseAddress,omitempty"`
				BindPort         int    `json:"bindPort,omitempty"`
			} `json:"localAPIEndpoint,omitempty"`
			CertificateKey string `json:"certificateKey,omitempty"`
		} `json:"controlPlane,omitempty"`
	}
)

// tokenDiscovery is how a machine that joins knows the cluster by a token.
type tokenDiscovery struct {
	Token                    string   `json:"token,omitempty"`
	APIServerEndpoint        string   `json:"apiServerEndpoint,omitempty"`
	CACertHashes             []string `json:"caCertHashes,omitempty"`
	UnsafeSkipCAVerification bool     `json:"unsafeSkipCAVerification,omitempty"`
}

// kubeadmVersion is the version of kubeadm's configuration that is read.
const kubeadmVersion = "kubeadm.k8s.io/v1beta4"

// decodeKubeadm reads each document of a file into the value for its kind.
// Kinds of other programs in the file are passed over.
func decodeKubeadm(data []byte, into map[string]any) error {
	return eachKubeadm(data, func(meta metav1.TypeMeta, doc []byte) error {
		target, ok := into[meta.Kind]
		if !ok {
			return nil
		}
		if err := yaml.UnmarshalStrict(doc, target); err != nil {
			return fmt.Errorf("%s: %w", meta.Kind, err)
		}
		return nil
	})
}

// eachKubeadm calls do for each of kubeadm's documents in a file.
func eachKubeadm(data []byte, do func(meta metav1.TypeMeta, doc []byte) error) error {
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading YAML: %w", err)
		}
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal(doc, &meta); err != nil {
			return fmt.Errorf("reading YAML: %w", err)
		}
		group, _, _ := strings.Cut(meta.APIVersion, "/")
		if group != "kubeadm.k8s.io" {
			continue
		}
		if meta.APIVersion != kubeadmVersion {
			return fmt.Errorf("%s of %s cannot be read: want %s", meta.Kind, meta.APIVersion, kubeadmVersion)
		}
		if err := do(meta, doc); err != nil {
			return err
		}
	}
}

// decodeInit reads what a file says of a master.
func decodeInit(data []byte) (masterSettings, error) {
	var in initConfiguration
	var cluster clusterConfiguration
	s := masterSettings{Port: layout.PortAPIServer, TokenTTL: trust.DefaultTTL}
	if err := decodeKubeadm(data, map[string]any{"InitConfiguration": &in, "ClusterConfiguration": &cluster}); err != nil {
		return s, err
	}
	s.CertificateKey = in.CertificateKey
	s.NodeName, s.Advertise = in.NodeRegistration.Name, in.LocalAPIEndpoint.AdvertiseAddress
	if in.LocalAPIEndpoint.BindPort != 0 {
		s.Port = in.LocalAPIEndpoint.BindPort
	}
	s.ofCluster(&cluster)
	switch len(in.BootstrapTokens) {
	case 0:
	case 1:
		s.Token = in.BootstrapTokens[0].Token
		if ttl := in.BootstrapTokens[0].TTL; ttl != nil {
			s.TokenTTL = ttl.Duration
		}
	default:
		return s, errors.New("bootstrapTokens: one is read; make others with `hyperkube token create`")
	}
	var err error
	s.Taints, err = in.NodeRegistration.taints()
	return s, err
}

// ofCluster takes what all masters of a cluster have alike.
func (s *masterSettings) ofCluster(cluster *clusterConfiguration) {
	s.Endpoint, s.SANs, s.Domain = cluster.ControlPlaneEndpoint, cluster.APIServer.CertSANs, cluster.Networking.DNSDomain
	s.PodCIDRs, s.ServiceCIDRs = list(cluster.Networking.PodSubnet), list(cluster.Networking.ServiceSubnet)
	extra := map[string][]argument{
		"kube-apiserver": cluster.APIServer.ExtraArgs, "kube-controller-manager": cluster.ControllerManager.ExtraArgs,
		"kube-scheduler": cluster.Scheduler.ExtraArgs,
	}
	if cluster.Etcd.Local != nil {
		extra["etcd"] = cluster.Etcd.Local.ExtraArgs
	}
	s.Extra = map[string][]manifests.Flag{}
	for name, args := range extra {
		for _, a := range args {
			s.Extra[name] = append(s.Extra[name], manifests.Flag(a))
		}
	}
}

// taints are those of a node as flags have them; nil says that nobody spoke of
// them, an empty list that there are to be none.
func (r *nodeRegistration) taints() ([]string, error) {
	if len(r.KubeletExtraArgs) > 0 {
		return nil, errors.New("nodeRegistration.kubeletExtraArgs: the kubelet of hyperkube is set up by the flags of `hyperkube node` and has no others")
	}
	if r.Taints == nil {
		return nil, nil
	}
	taints := []string{}
	for _, t := range *r.Taints {
		taints = append(taints, fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect))
	}
	return taints, nil
}

// taints of a master.
func (m *master) taints() ([]corev1.Taint, error) {
	if m.settings.Taints == nil {
		return []corev1.Taint{{Key: controlPlaneRole, Effect: corev1.TaintEffectNoSchedule}}, nil
	}
	return kubelet.ParseTaints(m.settings.Taints)
}

// clusterConfiguration is what the cluster keeps of how it was made.
func (m *master) clusterConfiguration() clusterConfiguration {
	c := clusterConfiguration{
		TypeMeta:    metav1.TypeMeta{Kind: "ClusterConfiguration", APIVersion: kubeadmVersion},
		ClusterName: "kubernetes", KubernetesVersion: version.Get().GitVersion,
		ControlPlaneEndpoint: m.settings.Endpoint,
	}
	c.Networking.DNSDomain = m.identity.Domain
	c.Networking.PodSubnet = strings.Join(m.identity.PodCIDRs, ",")
	c.Networking.ServiceSubnet = strings.Join(m.identity.ServiceCIDRs, ",")
	c.APIServer.CertSANs = m.settings.SANs
	arguments := func(component string) []argument {
		var args []argument
		for _, f := range m.settings.Extra[component] {
			args = append(args, argument(f))
		}
		return args
	}
	c.APIServer.ExtraArgs = arguments("kube-apiserver")
	c.ControllerManager.ExtraArgs = arguments("kube-controller-manager")
	c.Scheduler.ExtraArgs = arguments("kube-scheduler")
	if args := arguments("etcd"); args != nil {
		c.Etcd.Local = &component{ExtraArgs: args}
	}
	return c
}

// list splits a list with commas; "" is nil.
func list(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}
