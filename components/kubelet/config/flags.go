package config

import (
	"errors"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"hyperkube/internal/base/cloudprovider"
	"hyperkube/internal/base/compatflags"
	"hyperkube/internal/host/layout"
)

// Flags are the command line flags of the kubelet. Register must be called before the command line is parsed,
// and Config after that.
type Flags struct {
	// Kubeconfig is the path of the kubeconfig file for the API server. Empty means that there is no
	// API server.
	Kubeconfig string
	// Bootstrap is the path of the kubeconfig file that is used to request the first client
	// certificate. It may be empty.
	Bootstrap string
	// CertDir is the directory of the kubelet's TLS certificates. Empty means the default.
	CertDir string
	// Verbosity is the log verbosity. 2 and higher logs each operation on a pod.
	Verbosity int

	file, dropIns, root, hostname string
	// fields are the flags that override one field of KubeletConfiguration each.
	fields fieldFlags
	// overrides apply the other flags, in the order of their registration. isSet reports whether a flag is
	// set on the command line.
	overrides []func(c *Config, isSet func(flag string) bool) error
}

// Register adds the flags to f. Their values are in o after f was parsed.
func (o *Flags) Register(f *pflag.FlagSet) {
	f.StringVar(&o.file, "config", "", "Path of a KubeletConfiguration file. Flags take precedence over it.")
	f.StringVar(&o.dropIns, "config-dir", "", "Directory of drop-in KubeletConfiguration files (*.conf), which are applied in lexical order.")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "Path of the kubeconfig file for the API server. Without it the kubelet runs only static pods.")
	f.StringVar(&o.Bootstrap, "bootstrap-kubeconfig", "", "Path of the kubeconfig file that is used to request the first client certificate, if the file specified by --kubeconfig does not exist or its certificate has expired. The kubelet then writes the file specified by --kubeconfig.")
	f.StringVar(&o.CertDir, "cert-dir", "", "Directory of the kubelet's TLS certificates. The default is the directory pki in --root-dir.")
	f.StringVar(&o.hostname, "hostname-override", "", "Node name to use instead of the hostname.")
	f.StringVar(&o.root, "root", "", "Keep all files below this directory instead of in the default locations, as with --root of the cluster commands.")
	f.IntVarP(&o.Verbosity, "v", "v", 0, "Log verbosity. 2 and higher logs each operation on a pod.")
	o.fields.register(f)
	o.registerNode(f)
	o.registerPods(f)
	o.registerServer(f)
	compatflags.Add(f, unused...)
}

// override registers apply, which sets the value of one flag in the configuration. Config calls apply after it has
// applied the configuration files, but only if the flag was given on the command line.
func (o *Flags) override(flag string, apply func(*Config)) {
	o.overrides = append(o.overrides, func(c *Config, isSet func(string) bool) error {
		if isSet(flag) {
			apply(c)
		}
		return nil
	})
}

// overrideOrFail registers apply, which Config calls after it has applied the configuration files, whether flags
// were given or not. apply itself must leave the configuration unchanged if its flags are empty. If apply returns
// an error, Config returns that error.
func (o *Flags) overrideOrFail(apply func(*Config) error) {
	o.overrides = append(o.overrides, func(c *Config, _ func(string) bool) error { return apply(c) })
}

// registerNode adds the flags of the node and its registration.
func (o *Flags) registerNode(f *pflag.FlagSet) {
	endpoint := f.String("container-runtime-endpoint", "", "Endpoint of the container runtime's CRI socket, for example unix:///run/containerd/containerd.sock.")
	o.override("container-runtime-endpoint", func(c *Config) { c.Runtime.Endpoint = *endpoint })
	dir := f.String("root-dir", layout.Default().Kubelet, "Directory of the kubelet's files, such as volume mounts.")
	o.override("root-dir", func(c *Config) { c.Layout.Kubelet = *dir })
	ips := f.StringSlice("node-ip", nil, "IP address of the node, or two addresses of different families. 0.0.0.0 and :: stand for the machine's address of the family.")
	o.overrideOrFail(func(c *Config) error {
		var errs []error
		var parsed []netip.Addr
		for _, s := range *ips {
			ip, err := netip.ParseAddr(s)
			errs = append(errs, err)
			parsed = append(parsed, ip)
		}
		if len(parsed) > 0 {
			c.Node.IPs = parsed
		}
		return errors.Join(errs...)
	})
	register := f.Bool("register-node", true, "Register the node with the API server.")
	o.override("register-node", func(c *Config) { c.Node.NoRegister = !*register })
	labels := f.StringToString("node-labels", nil, "Labels to add when the node is registered.")
	o.override("node-labels", func(c *Config) { c.Node.Labels = *labels })
	taints := f.StringSlice("register-with-taints", nil, "Taints to add when the node is registered, as key=value:effect.")
	o.overrideOrFail(func(c *Config) error {
		if len(*taints) == 0 {
			return nil
		}
		parsed, err := ParseTaints(*taints)
		c.Node.Taints = parsed
		return err
	})
	maxPods := f.Int("max-pods", defaultMaxPods, "Maximum number of pods on this node.")
	o.override("max-pods", func(c *Config) { c.Node.MaxPods = int64(*maxPods) })
	cgroupRoot := f.String("cgroup-root", "", "Root cgroup of the pods' cgroups.")
	o.override("cgroup-root", func(c *Config) { c.Layout.CgroupRoot = *cgroupRoot })
	providerID := f.String("provider-id", "", "ID of this node at the cloud provider.")
	o.override("provider-id", func(c *Config) { c.Node.ProviderID = *providerID })
	var provider cloudprovider.Setting
	cloudprovider.Register(f, &provider, "Set to external if a cloud controller manager initializes the node. Otherwise empty.")
	o.override("cloud-provider", func(c *Config) { c.Node.CloudProvider = provider })
	podCIDR := f.String("pod-cidr", "", "CIDR of pod IP addresses until the Node has one.")
	o.override("pod-cidr", func(c *Config) { c.Node.PodCIDR = *podCIDR })
}

// registerPods adds the flags of pods and containers.
func (o *Flags) registerPods(f *pflag.FlagSet) {
	dns := f.StringSlice("cluster-dns", nil, "IP addresses of the cluster's DNS servers.")
	o.override("cluster-dns", func(c *Config) { c.DNS.Servers = *dns })
	domain := f.String("cluster-domain", "", "DNS domain of the cluster.")
	o.override("cluster-domain", func(c *Config) { c.DNS.Domain = *domain })
	resolv := f.String("resolv-conf", "", "Resolver configuration file of the node, the basis of the pods' DNS configuration.")
	o.override("resolv-conf", func(c *Config) { c.DNS.ResolvConf, c.DNS.NoResolvConf = *resolv, *resolv == "" })
	manifests := f.String("pod-manifest-path", "", "Directory of static pod manifests.")
	o.override("pod-manifest-path", func(c *Config) { c.StaticPods.Dir = *manifests })
	seccomp := f.Bool("seccomp-default", false, "Use the RuntimeDefault seccomp profile for containers that specify none.")
	o.override("seccomp-default", func(c *Config) { c.Containers.SeccompDefault = *seccomp })
	providers := f.String("image-credential-provider-config", "", "Path of a CredentialProviderConfig file, or of a directory of such files.")
	o.override("image-credential-provider-config", func(c *Config) { c.Images.CredentialProviders = *providers })
	binaries := f.String("image-credential-provider-bin-dir", "", "Directory of the credential provider binaries.")
	o.override("image-credential-provider-bin-dir", func(c *Config) { c.Images.CredentialProviderDir = *binaries })
	minAge := f.Duration("minimum-container-ttl-duration", 0, "Minimum age of an exited container before it is garbage collected.")
	o.override("minimum-container-ttl-duration", func(c *Config) { c.Containers.DeadContainers.MinAge = *minAge })
	perContainer := f.Int("maximum-dead-containers-per-container", 1, "Maximum number of old instances to retain per container. -1 means no limit.")
	o.override("maximum-dead-containers-per-container", func(c *Config) { c.Containers.DeadContainers.PerContainer = perContainer })
	total := f.Int("maximum-dead-containers", -1, "Maximum number of exited containers to retain on the node. -1 means no limit.")
	o.override("maximum-dead-containers", func(c *Config) { c.Containers.DeadContainers.Total = total })
}

// registerServer adds the flags of the HTTP servers.
func (o *Flags) registerServer(f *pflag.FlagSet) {
	address := f.String("address", "", "IP address that the HTTPS server listens on.")
	o.override("address", func(c *Config) { c.Server.Address = *address })
	port := f.Int("port", layout.PortKubelet, "Port of the HTTPS server.")
	o.override("port", func(c *Config) { c.Server.Port = *port })
	healthz := f.Int("healthz-port", layout.PortKubeletHealthz, "Port of the health check server on localhost. 0 disables it.")
	o.override("healthz-port", func(c *Config) {
		if c.Server.HealthzPort = *healthz; *healthz == 0 {
			c.Server.HealthzPort = -1
		}
	})
	cert := f.String("tls-cert-file", "", "Certificate file of the HTTPS server. Without it the kubelet uses a self-signed certificate.")
	key := f.String("tls-private-key-file", "", "Private key file of the HTTPS server.")
	o.overrideOrFail(func(c *Config) error {
		if *cert == "" && *key == "" {
			return nil
		}
		c.Server.Certificate = CertificateFiles(*cert, *key)
		_, err := c.Server.Certificate()
		return err
	})
	clientCA := f.String("client-ca-file", "", "File of the certificate authorities that sign client certificates.")
	o.overrideOrFail(func(c *Config) error {
		if *clientCA == "" {
			return nil
		}
		pool, err := ReadPool(*clientCA)
		c.Access.ClientCA = pool
		return err
	})
	anonymous := f.Bool("anonymous-auth", false, "Allow anonymous requests. They are still subject to authorization.")
	o.override("anonymous-auth", func(c *Config) { c.Access.Anonymous = *anonymous })
	mode := f.String("authorization-mode", "Webhook", "Authorization mode of the HTTPS server: Webhook or AlwaysAllow.")
	o.override("authorization-mode", func(c *Config) { c.Access.AlwaysAllow = *mode == "AlwaysAllow" })
}

// unused are upstream's flags that are accepted but have no effect here, and why. If Only is set, other values are
// rejected, because ignoring them would run a kubelet that behaves differently than requested.
var unused = []compatflags.Flag{
	{Name: "runtime-cgroups", Why: "the runtime stays in the cgroup in which it was started"},
	{Name: "experimental-mounter-path", Why: "no external mounter is used", Only: []string{""}},
	{Name: "experimental-allocatable-ignore-eviction", Why: "eviction thresholds always count towards node allocatable", Only: []string{"false"}, Bool: true},
	{Name: "lock-file", Why: "the kubelet uses no lock file", Only: []string{""}},
	{Name: "exit-on-lock-contention", Why: "the kubelet uses no lock file", Only: []string{"false"}, Bool: true},
	{Name: "logging-format", Why: "use logging.format in the configuration file", Only: []string{"", "text"}},
	{Name: "log-flush-frequency", Why: "logs are not buffered"},
	{Name: "vmodule", Why: "verbosity cannot be set per file"},
}

// Config returns the configuration from the configuration files and the flags, without defaults except for the
// paths and the node name, which is the hostname in lower case. Flags take precedence over files. isSet reports
// whether a flag was given on the command line. It returns an error if a file cannot be read or a value is not
// valid.
func (o *Flags) Config(isSet func(flag string) bool) (Config, error) {
	cfg := Config{Layout: layout.Default()}
	if o.root != "" {
		cfg.Layout = layout.Under(o.root)
	}
	values, err := o.Fields(isSet)
	if err != nil {
		return cfg, err
	}
	file, err := LoadFiles(o.file, o.dropIns, values)
	if err != nil {
		return cfg, err
	}
	if file != nil {
		if err := cfg.Apply(file); err != nil {
			return cfg, err
		}
	}
	errs := []error{o.Override(&cfg, isSet)}
	cfg.NodeName = o.hostname
	if cfg.NodeName == "" {
		name, err := os.Hostname()
		errs = append(errs, err)
		cfg.NodeName = strings.ToLower(strings.TrimSpace(name))
	}
	return cfg, errors.Join(errs...)
}

// Fields returns the values of the flags that set a field of KubeletConfiguration, by the paths of the fields, for Load. isSet
// reports whether a flag is set.
func (o *Flags) Fields(isSet func(flag string) bool) (map[string]any, error) {
	return o.fields.values(isSet)
}

// Override applies the other flags that are set to c. Configuration files must be applied before.
func (o *Flags) Override(c *Config, isSet func(flag string) bool) error {
	var errs []error
	for _, apply := range o.overrides {
		errs = append(errs, apply(c, isSet))
	}
	return errors.Join(errs...)
}
