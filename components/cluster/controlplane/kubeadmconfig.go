package controlplane

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/joindiscovery"
	"hyperkube/components/cluster/kubeadmapi"
	kubeletconfig "hyperkube/components/kubelet/config"
	"hyperkube/internal/base/cloudprovider"
	"hyperkube/internal/base/version"
	"hyperkube/internal/host/layout"
	"hyperkube/manifests"
)

// The supported parts of kubeadm's configuration. Other fields are refused, so that a user does not
// assume that they have an effect.
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
		NodeRegistration nodeRegistration      `json:"nodeRegistration,omitempty"`
		CertificateKey   string                `json:"certificateKey,omitempty"`
		Patches          *patchesConfiguration `json:"patches,omitempty"`
		SkipPhases       []string              `json:"skipPhases,omitempty"`
		DryRun           bool                  `json:"dryRun,omitempty"`
		Timeouts         *timeouts             `json:"timeouts,omitempty"`
	}

	patchesConfiguration struct {
		Directory string `json:"directory,omitempty"`
	}

	bootstrapToken struct {
		Token       string           `json:"token,omitempty"`
		Description string           `json:"description,omitempty"`
		TTL         *metav1.Duration `json:"ttl,omitempty"`
		Usages      []string         `json:"usages,omitempty"`
		Groups      []string         `json:"groups,omitempty"`
	}

	nodeRegistration struct {
		Name             string          `json:"name,omitempty"`
		Taints           *[]corev1.Taint `json:"taints,omitempty"`
		KubeletExtraArgs []argument      `json:"kubeletExtraArgs,omitempty"`
		// IgnorePreflightErrors lists preflight checks whose errors are reported as warnings.
		IgnorePreflightErrors []string `json:"ignorePreflightErrors,omitempty"`
	}

	argument             = kubeadmapi.Argument
	clusterConfiguration = kubeadmapi.ClusterConfiguration

	joinConfiguration struct {
		metav1.TypeMeta  `json:",inline"`
		NodeRegistration nodeRegistration `json:"nodeRegistration,omitempty"`
		Discovery        struct {
			BootstrapToken    *tokenDiscovery `json:"bootstrapToken,omitempty"`
			File              *fileDiscovery  `json:"file,omitempty"`
			TLSBootstrapToken string          `json:"tlsBootstrapToken,omitempty"`
		} `json:"discovery,omitempty"`
		ControlPlane *struct {
			LocalAPIEndpoint struct {
				AdvertiseAddress string `json:"advertiseAddress,omitempty"`
				BindPort         int    `json:"bindPort,omitempty"`
			} `json:"localAPIEndpoint,omitempty"`
			CertificateKey string `json:"certificateKey,omitempty"`
		} `json:"controlPlane,omitempty"`
		Patches  *patchesConfiguration `json:"patches,omitempty"`
		DryRun   bool                  `json:"dryRun,omitempty"`
		Timeouts *timeouts             `json:"timeouts,omitempty"`
	}
)

// tokenDiscovery configures discovery of the cluster by a bootstrap token.
type tokenDiscovery struct {
	Token                    string   `json:"token,omitempty"`
	APIServerEndpoint        string   `json:"apiServerEndpoint,omitempty"`
	CACertHashes             []string `json:"caCertHashes,omitempty"`
	UnsafeSkipCAVerification bool     `json:"unsafeSkipCAVerification,omitempty"`
}

// fileDiscovery configures discovery of the cluster by a kubeconfig file, the discovery file.
type fileDiscovery struct {
	KubeConfigPath string `json:"kubeConfigPath,omitempty"`
}

// decodeKubeadm decodes each kubeadm document in data, a configuration file, into the value that into contains for its
// kind. It ignores documents of other kinds. The error lists all unknown and unsupported fields.
func decodeKubeadm(data []byte, into map[string]any) error {
	return eachKubeadm(data, func(meta metav1.TypeMeta, doc []byte) error {
		target, ok := into[meta.Kind]
		if !ok {
			return nil
		}
		text, err := yaml.YAMLToJSONStrict(doc)
		if err != nil {
			return fmt.Errorf("%s: %w", meta.Kind, err)
		}
		unknown, err := json.UnmarshalStrict(text, target)
		for i := range unknown {
			unknown[i] = withReason(unknown[i])
		}
		if err = errors.Join(append(unknown, err)...); err != nil {
			return fmt.Errorf("%s: %w", meta.Kind, err)
		}
		return nil
	})
}

// withReason adds the reason to the error about an unknown field, if kubeadm has this field.
func withReason(err error) error {
	_, field, ok := strings.Cut(err.Error(), "unknown field ")
	if name, wrong := strconv.Unquote(field); ok && wrong == nil {
		if reason := kubeadmapi.UnsupportedReason(name); reason != "" {
			return fmt.Errorf("%w: %s", err, reason)
		}
	}
	return err
}

// eachKubeadm calls do with the type and the content of each YAML document in data whose group is kubeadm.k8s.io, and
// ignores the others. A version other than kubeadmapi.Version is an error. It stops at the first error.
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
		if group != kubeadmapi.Group {
			continue
		}
		if meta.APIVersion != kubeadmapi.Version {
			return fmt.Errorf("%s of %s is not supported: expected %s", meta.Kind, meta.APIVersion, kubeadmapi.Version)
		}
		if err := do(meta, doc); err != nil {
			return err
		}
	}
}

// decodeInit returns the settings in data, the content of a configuration file of init.
func decodeInit(data []byte) (controlPlaneSettings, error) {
	var in initConfiguration
	var cluster clusterConfiguration
	s := controlPlaneSettings{Port: layout.PortAPIServer, TokenTTL: joindiscovery.DefaultTTL}
	if err := decodeKubeadm(data, map[string]any{"InitConfiguration": &in, "ClusterConfiguration": &cluster}); err != nil {
		return s, err
	}
	s.CertificateKey, s.Skip, s.DryRun, s.Ignored = in.CertificateKey, in.SkipPhases, in.DryRun, in.NodeRegistration.IgnorePreflightErrors
	s.NodeName, s.Advertise = in.NodeRegistration.Name, in.LocalAPIEndpoint.AdvertiseAddress
	if in.LocalAPIEndpoint.BindPort != 0 {
		s.Port = in.LocalAPIEndpoint.BindPort
	}
	s.applyCluster(&cluster)
	switch len(in.BootstrapTokens) {
	case 0:
	case 1:
		t := in.BootstrapTokens[0]
		s.Token, s.TokenDescription, s.TokenUsages, s.TokenGroups = t.Token, t.Description, t.Usages, t.Groups
		if t.TTL != nil {
			s.TokenTTL = t.TTL.Duration
		}
	default:
		return s, errors.New("bootstrapTokens: only one token is supported; create others with `hyperkube token create`")
	}
	if in.Patches != nil {
		s.Patches = in.Patches.Directory
	}
	provider, err := in.NodeRegistration.cloudProvider()
	if err != nil {
		return s, err
	}
	if provider != "" {
		s.setCloudProvider(provider)
	}
	s.Taints = in.NodeRegistration.taints()
	if s.Waits, err = in.Timeouts.values(); err != nil {
		return s, err
	}
	if err := kubeadmapi.CheckVersion(cluster.KubernetesVersion); err != nil {
		return s, fmt.Errorf("kubernetesVersion: %w", err)
	}
	return s, errors.Join(s.checkPods(), s.checkSkip())
}

// checkPods validates the extra volumes and environment variables of static pods.
func (s *controlPlaneSettings) checkPods() error {
	var errs []error
	for _, name := range manifests.Components() {
		for _, v := range s.Volumes[name] {
			if err := v.Validate(); err != nil {
				errs = append(errs, fmt.Errorf("extraVolumes of %s: %w", name, err))
			}
		}
		for _, e := range s.Envs[name] {
			for _, problem := range validation.IsEnvVarName(e.Name) {
				errs = append(errs, fmt.Errorf("extraEnvs of %s: %q: %s", name, e.Name, problem))
			}
		}
	}
	return errors.Join(errs...)
}

// applyCluster sets those settings that all control plane nodes of a cluster share, from the configuration that is
// stored in the cluster.
func (s *controlPlaneSettings) applyCluster(cluster *clusterConfiguration) {
	s.ClusterName = cluster.ClusterName
	s.Endpoint, s.SANs, s.Domain = cluster.ControlPlaneEndpoint, cluster.APIServer.CertSANs, cluster.Networking.DNSDomain
	s.PodCIDRs, s.ServiceCIDRs = kubeadmapi.SplitList(cluster.Networking.PodSubnet), kubeadmapi.SplitList(cluster.Networking.ServiceSubnet)
	components := map[string]*kubeadmapi.MountingComponent{
		"kube-apiserver": &cluster.APIServer.MountingComponent, "kube-controller-manager": &cluster.ControllerManager,
		"kube-scheduler": &cluster.Scheduler,
	}
	if cluster.Etcd.Local != nil {
		components["etcd"] = &kubeadmapi.MountingComponent{Component: *cluster.Etcd.Local}
	}
	s.Extra = map[string][]manifests.Flag{}
	for name, c := range components {
		for _, a := range c.ExtraArgs {
			s.Extra[name] = append(s.Extra[name], manifests.Flag(a))
		}
		if len(c.ExtraVolumes) > 0 {
			put(&s.Volumes, name, c.ExtraVolumes)
		}
		if len(c.ExtraEnvs) > 0 {
			put(&s.Envs, name, c.ExtraEnvs)
		}
	}
}

// put sets m[key] = value and creates the map if it is nil.
func put[T any](m *map[string]T, key string, value T) {
	if *m == nil {
		*m = map[string]T{}
	}
	(*m)[key] = value
}

// taints returns the configured taints of a node in the format of flags. It returns nil if none are
// configured, and an empty list if the node should have no taints.
func (r *nodeRegistration) taints() []string {
	if r.Taints == nil {
		return nil
	}
	taints := []string{}
	for _, t := range *r.Taints {
		taints = append(taints, fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect))
	}
	return taints
}

// cloudProvider returns the value of cloud-provider in kubeletExtraArgs. It returns an error for other arguments of the
// kubelet.
func (r *nodeRegistration) cloudProvider() (cloudprovider.Setting, error) {
	var s cloudprovider.Setting
	for _, a := range r.KubeletExtraArgs {
		if a.Name != "cloud-provider" {
			return "", fmt.Errorf("nodeRegistration.kubeletExtraArgs: %s is not supported; configure the kubelet with the flags of `hyperkube node`", a.Name)
		}
		if err := s.Set(a.Value); err != nil {
			return "", fmt.Errorf("nodeRegistration.kubeletExtraArgs: cloud-provider: %w", err)
		}
	}
	return s, nil
}

// taints returns the taints to add to the Node of this control plane node: the configured ones or kubeadm's default.
func (m *controlPlaneNode) taints() ([]corev1.Taint, error) {
	if m.settings.Taints == nil {
		return []corev1.Taint{{Key: clusterconfig.ControlPlaneRole, Effect: corev1.TaintEffectNoSchedule}}, nil
	}
	return kubeletconfig.ParseTaints(m.settings.Taints)
}

// clusterConfiguration returns kubeadm's ClusterConfiguration with the settings of this node, which init stores in a
// ConfigMap of the cluster for joining machines.
func (m *controlPlaneNode) clusterConfiguration() clusterConfiguration {
	c := clusterConfiguration{
		TypeMeta:    metav1.TypeMeta{Kind: "ClusterConfiguration", APIVersion: kubeadmapi.Version},
		ClusterName: m.settings.clusterName(), KubernetesVersion: version.Get().GitVersion,
		ControlPlaneEndpoint: m.settings.Endpoint,
	}
	c.Networking.DNSDomain = m.identity.Domain
	c.Networking.PodSubnet = strings.Join(m.identity.PodCIDRs, ",")
	c.Networking.ServiceSubnet = strings.Join(m.identity.ServiceCIDRs, ",")
	c.APIServer.CertSANs = m.settings.SANs
	of := func(name string) kubeadmapi.MountingComponent {
		c := kubeadmapi.MountingComponent{ExtraVolumes: m.settings.Volumes[name]}
		c.ExtraEnvs = m.settings.Envs[name]
		for _, f := range m.settings.Extra[name] {
			c.ExtraArgs = append(c.ExtraArgs, argument(f))
		}
		return c
	}
	c.APIServer.MountingComponent, c.ControllerManager, c.Scheduler = of("kube-apiserver"), of("kube-controller-manager"), of("kube-scheduler")
	if etcd := of("etcd").Component; len(etcd.ExtraArgs) > 0 || len(etcd.ExtraEnvs) > 0 {
		c.Etcd.Local = &etcd
	}
	return c
}
