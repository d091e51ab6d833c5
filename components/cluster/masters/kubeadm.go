package masters

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
	apiversion "k8s.io/apimachinery/pkg/util/version"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/json"
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
		Patches          *patchFolder     `json:"patches,omitempty"`
		SkipPhases       []string         `json:"skipPhases,omitempty"`
		DryRun           bool             `json:"dryRun,omitempty"`
		Timeouts         *timeouts        `json:"timeouts,omitempty"`
	}

	patchFolder struct {
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
		// IgnorePreflightErrors are checks whose problems are only told.
		IgnorePreflightErrors []string `json:"ignorePreflightErrors,omitempty"`
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
			mountingComponent `json:",inline"`
			CertSANs          []string `json:"certSANs,omitempty"`
		} `json:"apiServer,omitempty"`
		ControllerManager mountingComponent `json:"controllerManager,omitempty"`
		Scheduler         mountingComponent `json:"scheduler,omitempty"`
		Etcd              struct {
			Local *component `json:"local,omitempty"`
		} `json:"etcd,omitempty"`
	}

	component struct {
		ExtraArgs []argument      `json:"extraArgs,omitempty"`
		ExtraEnvs []corev1.EnvVar `json:"extraEnvs,omitempty"`
	}

	// mountingComponent is one that volumes can be given to: all but etcd.
	mountingComponent struct {
		component    `json:",inline"`
		ExtraVolumes []manifests.Volume `json:"extraVolumes,omitempty"`
	}

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
		Patches  *patchFolder `json:"patches,omitempty"`
		DryRun   bool         `json:"dryRun,omitempty"`
		Timeouts *timeouts    `json:"timeouts,omitempty"`
	}
)

// tokenDiscovery is how a machine that joins knows the cluster by a token.
type tokenDiscovery struct {
	Token                    string   `json:"token,omitempty"`
	APIServerEndpoint        string   `json:"apiServerEndpoint,omitempty"`
	CACertHashes             []string `json:"caCertHashes,omitempty"`
	UnsafeSkipCAVerification bool     `json:"unsafeSkipCAVerification,omitempty"`
}

// fileDiscovery is how it knows the cluster by a file.
type fileDiscovery struct {
	KubeConfigPath string `json:"kubeConfigPath,omitempty"`
}

// kubeadmVersion is the version of kubeadm's configuration that is read.
const kubeadmVersion = "kubeadm.k8s.io/v1beta4"

// decodeKubeadm reads each document of a file into the value for its kind, and tells all
// fields of it that mean nothing here.
// Kinds of other programs in the file are passed over.
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

// meaningless are fields of kubeadm's that mean nothing here, and why that is.
var meaningless = map[string]string{
	"imageRepository":                  "nothing is pulled, for the image of all components is the program itself",
	"featureGates":                     "they are those of kubeadm itself; a component's are feature-gates of its extraArgs",
	"dns":                              "DNS is the program itself",
	"proxy":                            "the service proxy is a part of the node",
	"certificatesDir":                  "certificates are in pki beside the kubeconfigs",
	"encryptionAlgorithm":              "keys are ECDSA P-256; those that are there are used, of whatever kind they are",
	"etcd.external":                    "a master has an etcd of its own",
	"etcd.local.dataDir":               "the data of etcd is below /var/lib/hyperkube",
	"nodeRegistration.criSocket":       "the container runtime is the program itself",
	"nodeRegistration.imagePullPolicy": "nothing is pulled",
	"nodeRegistration.imagePullSerial": "nothing is pulled",
}

// withReason adds to the error of a field that is not known why it is not, where that can be
// told.
func withReason(err error) error {
	_, field, ok := strings.Cut(err.Error(), "unknown field ")
	if name, wrong := strconv.Unquote(field); ok && wrong == nil && meaningless[name] != "" {
		return fmt.Errorf("%w: %s", err, meaningless[name])
	}
	return err
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
	s.CertificateKey, s.Skip, s.DryRun, s.Ignored = in.CertificateKey, in.SkipPhases, in.DryRun, in.NodeRegistration.IgnorePreflightErrors
	s.NodeName, s.Advertise = in.NodeRegistration.Name, in.LocalAPIEndpoint.AdvertiseAddress
	if in.LocalAPIEndpoint.BindPort != 0 {
		s.Port = in.LocalAPIEndpoint.BindPort
	}
	s.ofCluster(&cluster)
	switch len(in.BootstrapTokens) {
	case 0:
	case 1:
		t := in.BootstrapTokens[0]
		s.Token, s.TokenDescription, s.TokenUsages, s.TokenGroups = t.Token, t.Description, t.Usages, t.Groups
		if t.TTL != nil {
			s.TokenTTL = t.TTL.Duration
		}
	default:
		return s, errors.New("bootstrapTokens: one is read; make others with `hyperkube token create`")
	}
	if in.Patches != nil {
		s.Patches = in.Patches.Directory
	}
	var err error
	if s.Taints, err = in.NodeRegistration.taints(); err != nil {
		return s, err
	}
	if s.Waits, err = in.Timeouts.waits(); err != nil {
		return s, err
	}
	if err := checkVersion(cluster.KubernetesVersion); err != nil {
		return s, fmt.Errorf("kubernetesVersion: %w", err)
	}
	return s, errors.Join(s.checkPods(), s.checkSkip())
}

// checkVersion refuses the wish for another Kubernetes than this program is. What is no
// version names a release channel, such as stable-1.
func checkVersion(wish string) error {
	own, wished := apiversion.MustParseGeneric(version.Get().GitVersion), (*apiversion.Version)(nil)
	if wish != "" {
		wished, _ = apiversion.ParseGeneric(wish)
	}
	if wished != nil && (wished.Major() != own.Major() || wished.Minor() != own.Minor()) {
		return fmt.Errorf("%s: this program is %s and runs no other", wish, version.Get().GitVersion)
	}
	return nil
}

// checkPods tells what no static pod can have.
func (s *masterSettings) checkPods() error {
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

// ofCluster takes what all masters of a cluster have alike.
func (s *masterSettings) ofCluster(cluster *clusterConfiguration) {
	s.ClusterName = cluster.ClusterName
	s.Endpoint, s.SANs, s.Domain = cluster.ControlPlaneEndpoint, cluster.APIServer.CertSANs, cluster.Networking.DNSDomain
	s.PodCIDRs, s.ServiceCIDRs = list(cluster.Networking.PodSubnet), list(cluster.Networking.ServiceSubnet)
	components := map[string]*mountingComponent{
		"kube-apiserver": &cluster.APIServer.mountingComponent, "kube-controller-manager": &cluster.ControllerManager,
		"kube-scheduler": &cluster.Scheduler,
	}
	if cluster.Etcd.Local != nil {
		components["etcd"] = &mountingComponent{component: *cluster.Etcd.Local}
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

// put is m[key] = value, in a map that may be nil.
func put[T any](m *map[string]T, key string, value T) {
	if *m == nil {
		*m = map[string]T{}
	}
	(*m)[key] = value
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
		ClusterName: m.settings.clusterName(), KubernetesVersion: version.Get().GitVersion,
		ControlPlaneEndpoint: m.settings.Endpoint,
	}
	c.Networking.DNSDomain = m.identity.Domain
	c.Networking.PodSubnet = strings.Join(m.identity.PodCIDRs, ",")
	c.Networking.ServiceSubnet = strings.Join(m.identity.ServiceCIDRs, ",")
	c.APIServer.CertSANs = m.settings.SANs
	of := func(name string) mountingComponent {
		c := mountingComponent{ExtraVolumes: m.settings.Volumes[name]}
		c.ExtraEnvs = m.settings.Envs[name]
		for _, f := range m.settings.Extra[name] {
			c.ExtraArgs = append(c.ExtraArgs, argument(f))
		}
		return c
	}
	c.APIServer.mountingComponent, c.ControllerManager, c.Scheduler = of("kube-apiserver"), of("kube-controller-manager"), of("kube-scheduler")
	if etcd := of("etcd").component; len(etcd.ExtraArgs) > 0 || len(etcd.ExtraEnvs) > 0 {
		c.Etcd.Local = &etcd
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
