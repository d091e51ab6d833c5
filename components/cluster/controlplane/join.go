package controlplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/joindiscovery"
	"hyperkube/components/cluster/kubeadmapi"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/progress"
	"hyperkube/internal/host/atomicfile"
	"hyperkube/internal/host/layout"
)

// joinOptions are the flags of `join`, named like those of kubeadm. A configuration file can set them too.
type joinOptions struct {
	root, config   string
	verbose        bool
	dryRun         bool
	discoveryToken string
	tlsToken       string
	token          string
	node           node.Options
	discovery      joindiscovery.Discovery
	// discoveryFile is a path or URL of a kubeconfig that replaces discovery by token.
	discoveryFile string
	// asControlPlane makes the machine an additional control plane node. The shared certificates
	// and keys are downloaded and decrypted with certificateKey; if that is empty they must exist
	// already.
	asControlPlane bool
	certificateKey string
	advertise      string
	port           int
	// noKubeconfig and patches, which is a directory, apply only to control plane nodes.
	noKubeconfig bool
	patches      string
	timeouts     nodeTimeouts
	// ignored are preflight checks from the flag, followed by those from the file.
	ignored ignoredChecks
}

// NewJoin returns the command `join`, which joins this machine to a cluster that init has created.
func NewJoin() *cobra.Command {
	o := &joinOptions{}
	cmd := &cobra.Command{
		Use:   "join [HOST:PORT]",
		Short: "Join this machine to a cluster created with init",
		Long: "Join this machine to a cluster created with init. `hyperkube init` prints the command, and\n" +
			"`hyperkube token create --print-join-command` prints one with a new token. Without arguments,\n" +
			"it starts a node that has joined already.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.discovery.Endpoint = args[0]
			}
			return o.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	o.register(cmd.Flags())
	cmd.AddCommand(newJoinPhases())
	return cmd
}

// register adds the flags of join, which set the fields of o, to f.
func (o *joinOptions) register(f *pflag.FlagSet) {
	command.RootFlag(f, &o.root)
	f.StringVar(&o.config, "config", "", "Path to a kubeadm configuration file (JoinConfiguration of v1beta4).")
	f.StringVar(&o.token, "token", "", "Use this token for both discovery-token and tls-bootstrap-token when those values are not provided.")
	f.StringVar(&o.discoveryToken, "discovery-token", "", "For token-based discovery, the token used to validate cluster information fetched from the API server.")
	f.StringVar(&o.discoveryFile, "discovery-file", "", "For file-based discovery, a file or https URL from which to load cluster information.")
	f.StringVar(&o.tlsToken, "tls-bootstrap-token", "", "Specify the token used to temporarily authenticate with the control plane while joining the node.")
	f.StringSliceVar(&o.discovery.Hashes, "discovery-token-ca-cert-hash", nil, "For token-based discovery, validate that the root CA public key matches this hash (format: \"sha256:HEX\").")
	f.BoolVar(&o.discovery.Unsafe, "discovery-token-unsafe-skip-ca-verification", false, "For token-based discovery, allow joining without --discovery-token-ca-cert-hash pinning.")
	f.StringVar(&o.node.Name, "node-name", "", "Specify the node name. If not set, the hostname is used.")
	f.StringVar(&o.node.IP, "node-ip", "", "IP address of the node, or one of each family separated by a comma. 0.0.0.0 and :: choose an address of the family. If not set, the address of the default network interface is used.")
	f.BoolVar(&o.asControlPlane, "control-plane", false, "Create a new control plane instance on this node.")
	f.StringVar(&o.certificateKey, "certificate-key", "", "Use this key to decrypt the certificate secrets uploaded by init. If not set, the certificates must exist in the directory pki.")
	f.StringVar(&o.advertise, "apiserver-advertise-address", "", "If the node should host a new control plane instance, the IP address the API server will advertise it's listening on. If not set, the address of the default network interface is used.")
	f.IntVar(&o.port, "apiserver-bind-port", layout.PortAPIServer, "If the node should host a new control plane instance, the port for the API server to bind to.")
	f.StringVar(&o.patches, "patches", "", "If the node should host a new control plane instance, path to a directory that contains patches of static pod manifests, named COMPONENT[SUFFIX][+strategic|+merge|+json].yaml or .json.")
	node.RegisterSeccompDefault(f, &o.node.NoSeccompDefault)
	node.RegisterProxyMode(f, &o.node.ProxyMode)
	node.RegisterCloudProvider(f, &o.node.CloudProvider)
	o.ignored.register(f)
	f.BoolVar(&o.noKubeconfig, "no-kubeconfig", false, "If the node should host a new control plane instance, don't change the user's kubeconfig.")
	f.BoolVar(&o.dryRun, "dry-run", false, "Don't apply any changes; just output what would be done.")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "Also log debug messages.")
}

// run joins the machine to a cluster as a worker or an additional control plane node. Without the address of a
// cluster, it resumes an interrupted join, or starts the node of a machine that has joined already.
func (o *joinOptions) run(ctx context.Context, out io.Writer) error {
	if err := command.RequireRoot(); err != nil {
		return err
	}
	l := command.Layout(o.root)
	if pid, err := pidlock.Holder(l.PIDFile(layout.MainProcess)); err != nil {
		return err
	} else if pid != 0 && !isJoinIncomplete(l) {
		fmt.Fprintf(out, "hyperkube is running already (process %d)\n", pid)
		return nil
	}
	s := progress.New(progress.Print(out))
	if o.discovery.Endpoint == "" && o.discoveryFile == "" && o.config == "" && clusterconfig.HasJoined(l) {
		if o.dryRun {
			return dryRunWrite(out, l, func(l layout.Node) error { return rewriteManifests(l, s, o.patches, o.verbose) }, printUpgrade)
		}
		if isJoinIncomplete(l) {
			return o.resumeJoin(ctx, out, l, s)
		}
		if err := rewriteManifests(l, s, o.patches, o.verbose); err != nil {
			return err
		}
		return o.start(ctx, l, s)
	}
	bootstrap, err := o.complete(ctx)
	if err != nil {
		return command.ConfigError(err)
	}
	if _, exists, err := clusterconfig.Load(l); err != nil {
		return err
	} else if exists {
		return command.PreflightError(fmt.Errorf("this machine already has a cluster in %s: delete it with `hyperkube reset` first", l.Data))
	}
	if !clusterconfig.HasJoined(l) {
		if err := o.ignored.check(out, l, o.ports(), nil, o.node.ProxyMode); err != nil {
			return err
		}
	}
	began := time.Now()
	cluster, err := o.discover(ctx, o.waitOptions(s))
	if err != nil {
		return err
	}
	s.Done(began, "cluster at %s discovered and verified", o.discovery.Endpoint)
	if o.dryRun {
		return o.printDryRun(ctx, out, l, cluster, bootstrap)
	}
	if o.asControlPlane {
		return o.joinControlPlane(ctx, out, l, cluster, bootstrap, s)
	}
	if err := o.prepare(ctx, l, cluster, bootstrap); err != nil {
		return err
	}
	if err := o.start(ctx, l, s); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nThis node has joined the cluster.\n\nRun 'kubectl get nodes' on the control plane to see this node join the cluster.\n")
	return nil
}

// ports returns the TCP ports that must be free before the machine joins: those of the node and, for a control plane
// node, of its components.
func (o *joinOptions) ports() []int {
	ports := []int{layout.PortKubelet, layout.PortKubeletHealthz, layout.PortProxyHealthz}
	if o.asControlPlane {
		ports = append(ports, o.port, layout.PortEtcdClient, layout.PortEtcdPeer, layout.PortControllerManager, layout.PortScheduler)
	}
	return ports
}

// waitOptions returns the timeout of the discovery of the cluster, and how the wait reports progress to the user.
func (o *joinOptions) waitOptions(s *progress.Steps) progress.Waiter {
	return progress.Waiter{
		FirstReport: progress.FirstReport, ReportInterval: progress.ReportInterval, Timeout: o.timeouts.discovery(),
		Report: func(text string) { s.Send(progress.Step{Text: text, Waiting: true}) },
	}
}

// discover discovers and verifies the cluster. It retries until the timeout and reports the last error
// while it waits.
func (o *joinOptions) discover(ctx context.Context, p progress.Waiter) (cluster *joindiscovery.Cluster, err error) {
	var last atomic.Pointer[error]
	o.discovery.OnError = func(err error) { last.Store(&err) }
	p.Hint = "run `hyperkube token create --print-join-command` on a control plane node to create a new join command"
	err = p.Wait(ctx, "the cluster at "+o.discovery.Endpoint, func(context.Context) string {
		if err := last.Load(); err != nil {
			return (*err).Error()
		}
		return ""
	}, func(ctx context.Context) (err error) {
		cluster, err = o.discovery.Find(ctx)
		return err
	})
	if err == nil && cluster.ClockOffset.Abs() > warnSkew {
		p.Report(joindiscovery.Skew(cluster.ClockOffset))
	}
	return cluster, err
}

// Control plane nodes need synchronized clocks, because each accepts certificates that another one
// has just signed: certificates are valid from maxSkew before they are signed. On workers join only
// warns about a difference of more than warnSkew. With such a difference, service account tokens
// may be rejected because their time of issue is in the future.
const (
	maxSkew  = 5 * time.Minute
	warnSkew = time.Minute
)

// start starts the node process on this machine, waits until the node is registered in the cluster, and reports that
// to s.
func (o *joinOptions) start(ctx context.Context, l layout.Node, s *progress.Steps) error {
	began := time.Now()
	if err := node.Start(ctx, l, o.verbose, o.startTimeout(l), s); err != nil {
		return err
	}
	s.Done(began, "node started")
	return nil
}

// startTimeout returns how long join waits until the node is registered in the cluster. Control plane nodes and
// workers have separate timeouts.
func (o *joinOptions) startTimeout(l layout.Node) time.Duration {
	if clusterconfig.IsControlPlane(l) {
		return o.timeouts.controlPlane()
	}
	return o.timeouts.worker()
}

// complete adds the settings of the configuration file and of the discovery file to those of the flags, and validates
// the result. It returns the bootstrap token with which the kubelet gets its first certificate, which may be empty if
// the discovery file has credentials.
func (o *joinOptions) complete(ctx context.Context) (joindiscovery.Token, error) {
	if o.config != "" {
		if err := o.readConfigFile(); err != nil {
			return joindiscovery.Token{}, fmt.Errorf("--config: %w", err)
		}
	}
	if o.discoveryFile != "" {
		if err := o.loadDiscoveryFile(ctx); err != nil {
			return joindiscovery.Token{}, fmt.Errorf("--discovery-file: %w", err)
		}
	}
	return o.validate()
}

// loadDiscoveryFile loads the address and CA of the cluster from the discovery file. It returns an error if flags for
// the discovery with a token are set too.
func (o *joinOptions) loadDiscoveryFile(ctx context.Context) error {
	if o.discoveryToken != "" || o.discovery.Endpoint != "" || len(o.discovery.Hashes) > 0 || o.discovery.Unsafe {
		return errors.New("--discovery-file cannot be combined with HOST:PORT, --discovery-token, --discovery-token-ca-cert-hash or --discovery-token-unsafe-skip-ca-verification")
	}
	return o.discovery.LoadFile(ctx, o.discoveryFile)
}

// validate validates the options and sets defaults. It returns the bootstrap token with which the kubelet gets its
// first certificate, which may be empty if the discovery file has credentials.
func (o *joinOptions) validate() (joindiscovery.Token, error) {
	if o.discovery.Endpoint == "" {
		return joindiscovery.Token{}, errors.New("the address of the API server is missing: specify HOST:PORT or --discovery-file")
	}
	var bootstrap joindiscovery.Token
	var err error
	if o.discoveryFile == "" {
		if o.discovery.Token, err = joindiscovery.ParseToken(cmp.Or(o.discoveryToken, o.token)); err != nil {
			return joindiscovery.Token{}, err
		}
	}
	if token := cmp.Or(o.tlsToken, o.token, o.discoveryToken); token != "" {
		if bootstrap, err = joindiscovery.ParseToken(token); err != nil {
			return joindiscovery.Token{}, err
		}
	} else if !o.discovery.HasFileCredentials() {
		return joindiscovery.Token{}, errors.New("no credentials for TLS bootstrap: specify --tls-bootstrap-token, or a --discovery-file with credentials")
	}
	if o.node.Name, err = o.node.NodeName(); err != nil {
		return joindiscovery.Token{}, err
	}
	if o.asControlPlane {
		o.discovery.MaxSkew = maxSkew
	}
	return bootstrap, o.discovery.Validate()
}

// readConfigFile reads the configuration file of the flag --config and sets the options in it. Flags take precedence.
func (o *joinOptions) readConfigFile() error {
	data, err := os.ReadFile(o.config)
	if err != nil {
		return err
	}
	return o.decode(data)
}

// decode sets the options that data, the content of a configuration file, contains. Options that flags have set are
// not changed.
func (o *joinOptions) decode(data []byte) error {
	var err error
	var file joinConfiguration
	if err := decodeKubeadm(data, map[string]any{"JoinConfiguration": &file}); err != nil {
		return err
	}
	def := func(to *string, value string) {
		if *to == "" {
			*to = value
		}
	}
	def(&o.node.Name, file.NodeRegistration.Name)
	def(&o.tlsToken, file.Discovery.TLSBootstrapToken)
	if c := file.ControlPlane; c != nil {
		o.asControlPlane = true
		def(&o.certificateKey, c.CertificateKey)
		def(&o.advertise, c.LocalAPIEndpoint.AdvertiseAddress)
		if o.port == layout.PortAPIServer && c.LocalAPIEndpoint.BindPort != 0 {
			o.port = c.LocalAPIEndpoint.BindPort
		}
	}
	if file.Patches != nil {
		def(&o.patches, file.Patches.Directory)
	}
	if o.timeouts, err = file.Timeouts.values(); err != nil {
		return err
	}
	o.dryRun = o.dryRun || file.DryRun
	o.ignored = append(o.ignored, file.NodeRegistration.IgnorePreflightErrors...)
	provider, err := file.NodeRegistration.cloudProvider()
	if err != nil {
		return err
	}
	o.node.CloudProvider = cmp.Or(o.node.CloudProvider, provider)
	o.node.Taints = file.NodeRegistration.taints()
	if f := file.Discovery.File; f != nil {
		def(&o.discoveryFile, f.KubeConfigPath)
	}
	if b := file.Discovery.BootstrapToken; b != nil {
		def(&o.discoveryToken, b.Token)
		def(&o.discovery.Endpoint, b.APIServerEndpoint)
		if len(o.discovery.Hashes) == 0 {
			o.discovery.Hashes = b.CACertHashes
		}
		o.discovery.Unsafe = o.discovery.Unsafe || b.UnsafeSkipCAVerification
	}
	return nil
}

// prepare writes the files with which this machine starts as a worker of the cluster c. It reads the configuration of
// the cluster with the token.
func (o *joinOptions) prepare(ctx context.Context, l layout.Node, c *joindiscovery.Cluster, token joindiscovery.Token) error {
	kube, err := joinClient(c, token, o.timeouts.call())
	if err != nil {
		return err
	}
	cluster, kubelet, err := readClusterConfiguration(ctx, kube)
	if err != nil {
		return err
	}
	n := &o.node
	n.Kubeconfig = filepath.Join(l.Etc, "kubelet.conf")
	n.BootstrapKubeconfig = filepath.Join(l.Etc, "bootstrap-kubelet.conf")
	n.Rotate = true
	n.BootstrapTimeout = o.timeouts.Bootstrap
	n.StaticPods = l.StaticPods()
	n.DNS, n.Domain = kubelet.ClusterDNS, kubelet.ClusterDomain
	n.ClusterCIDRs = kubeadmapi.SplitList(cluster.Networking.PodSubnet)
	addresses, err := n.Addresses()
	if err != nil {
		return command.ConfigError(err)
	}
	if err := checkNameFree(ctx, kube, n.Name, addresses); err != nil {
		return err
	}
	n.ClientCA = filepath.Join(l.Etc, "pki", "ca.crt")
	// The options are saved first, so that reset finds a partially joined node.
	if err := n.Save(l); err != nil {
		return err
	}
	// An earlier attempt may have joined another cluster.
	if err := os.Remove(n.Kubeconfig); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing kubeconfig of an earlier attempt: %w", err)
	}
	for _, dir := range []string{filepath.Dir(n.ClientCA), n.StaticPods} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("creating directory: %w", err)
		}
	}
	if err := atomicfile.Write(atomicfile.File{Path: n.ClientCA, Data: c.CA, Mode: 0o644}); err != nil {
		return fmt.Errorf("writing CA certificate of the cluster: %w", err)
	}
	data, err := clientcmd.Write(*c.Kubeconfig(token))
	if err == nil {
		err = atomicfile.Write(atomicfile.File{Path: n.BootstrapKubeconfig, Data: data, Mode: 0o600})
	}
	if err != nil {
		return fmt.Errorf("writing bootstrap kubeconfig: %w", err)
	}
	return nil
}

// joinClient returns a client that authenticates with the bootstrap token or with the credentials of
// the discovery file. Each request is limited to the given time.
func joinClient(c *joindiscovery.Cluster, token joindiscovery.Token, timeout time.Duration) (kubernetes.Interface, error) {
	config, err := c.RESTConfig(token)
	if err != nil {
		return nil, err
	}
	config.Timeout = timeout
	return kubernetes.NewForConfig(config)
}

// readClusterConfiguration reads the cluster and kubelet configuration from the ConfigMaps of the cluster that this
// machine joins.
func readClusterConfiguration(ctx context.Context, kube kubernetes.Interface) (*clusterConfiguration, *kubeletv1beta1.KubeletConfiguration, error) {
	var cluster clusterConfiguration
	if err := readConfig(ctx, kube, joindiscovery.ClusterConfig, "ClusterConfiguration", &cluster); err != nil {
		return nil, nil, err
	}
	var kubelet kubeletv1beta1.KubeletConfiguration
	err := readConfig(ctx, kube, joindiscovery.KubeletConfig, "kubelet", &kubelet)
	return &cluster, &kubelet, err
}

// readConfig decodes the YAML document under key in the ConfigMap with this name, which init has created in
// kube-system, and stores it in into. If the token is rejected, the error explains how to create a new one.
func readConfig(ctx context.Context, kube kubernetes.Interface, name, key string, into any) error {
	config, err := kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsUnauthorized(err) {
		return fmt.Errorf("the token for TLS bootstrap is not valid; it may have expired or been deleted: "+
			"run `hyperkube token create --print-join-command` on a control plane node to create a new join command (%w)", err)
	}
	if err != nil {
		return fmt.Errorf("reading cluster configuration: %w", err)
	}
	if err := yaml.Unmarshal([]byte(config.Data[key]), into); err != nil {
		return fmt.Errorf("reading ConfigMap %s: %w", name, err)
	}
	return nil
}
