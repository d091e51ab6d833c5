package masters

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

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/identity"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/progress"
	"hyperkube/components/cluster/trust"
	"hyperkube/internal/atomicfile"
	"hyperkube/internal/layout"
)

// joinOptions are the flags of `join`, under kubeadm's names.
type joinOptions struct {
	root, config  string
	verbose       bool
	dryRun        bool
	discoverToken string
	tlsToken      string
	token         string
	node          node.Options
	discovery     trust.Discovery
	// discoveryFile tells of the cluster instead of a token; a path or a URL.
	discoveryFile string
	// asMaster: the machine becomes a master, with the keys that the cluster
	// holds under certificateKey, or with those that are there.
	asMaster       bool
	certificateKey string
	advertise      string
	port           int
	// noKubeconfig and patches, a folder, are for masters.
	noKubeconfig bool
	patches      string
	waits        waits
	// ignored are checks of the flag, and then of the file.
	ignored ignored
}

// NewJoin makes the command `join`.
func NewJoin() *cobra.Command {
	o := &joinOptions{}
	cmd := &cobra.Command{
		Use:   "join [HOST:PORT]",
		Short: "Make this machine a node of a cluster that init has made",
		Long: "Make this machine a node of a cluster that init has made. `hyperkube init` prints the command, and\n" +
			"`hyperkube token create --print-join-command` prints one with a new token. Without arguments it starts\n" +
			"the node again that has joined already.",
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

// register adds the flags.
func (o *joinOptions) register(f *pflag.FlagSet) {
	command.RootFlag(f, &o.root)
	f.StringVar(&o.config, "config", "", "Path of a kubeadm configuration file: JoinConfiguration of v1beta4.")
	f.StringVar(&o.token, "token", "", "Token for both --discovery-token and --tls-bootstrap-token.")
	f.StringVar(&o.discoverToken, "discovery-token", "", "Token that the cluster's information is signed with.")
	f.StringVar(&o.discoveryFile, "discovery-file", "", "Kubeconfig, a path or a URL of https, that tells of the cluster instead of HOST:PORT, a token and a hash.")
	f.StringVar(&o.tlsToken, "tls-bootstrap-token", "", "Token with which the node asks for its certificate.")
	f.StringSliceVar(&o.discovery.Hashes, "discovery-token-ca-cert-hash", nil, "Hash of the key of the cluster's authority: sha256:HEX.")
	f.BoolVar(&o.discovery.Unsafe, "discovery-token-unsafe-skip-ca-verification", false, "Believe whoever has the token, whatever the authority.")
	f.StringVar(&o.node.Name, "node-name", "", "Name of the node; empty is the hostname.")
	f.StringVar(&o.node.IP, "node-ip", "", "Address of the node, or one of each family with a comma; 0.0.0.0 and :: are whatever the machine has of the family, empty is what the default route's interface has.")
	f.BoolVar(&o.asMaster, "control-plane", false, "Become a further master of the cluster.")
	f.StringVar(&o.certificateKey, "certificate-key", "", "Key of the certificates that a master has uploaded; empty: they are in the directory pki already.")
	f.StringVar(&o.advertise, "apiserver-advertise-address", "", "With --control-plane: address at which others reach the API server; empty is that of the default route's interface.")
	f.IntVar(&o.port, "apiserver-bind-port", layout.PortAPIServer, "With --control-plane: port of the API server.")
	f.StringVar(&o.patches, "patches", "", "With --control-plane: folder of patches of the static pods: COMPONENT[SUFFIX][+strategic|+merge|+json].yaml or .json.")
	o.ignored.register(f)
	f.BoolVar(&o.noKubeconfig, "no-kubeconfig", false, "With --control-plane: leave the user's kubeconfig alone.")
	f.BoolVar(&o.dryRun, "dry-run", false, "Change nothing, and print what would be done.")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "Log debug messages, too.")
}

// run joins, or starts the node again that has joined.
func (o *joinOptions) run(ctx context.Context, out io.Writer) error {
	if err := command.NeedRoot(); err != nil {
		return err
	}
	l := command.Layout(o.root)
	if pid, err := pidlock.Holder(l.PIDFile(layout.MainProcess)); err != nil {
		return err
	} else if pid != 0 && !isHalfMaster(l) {
		fmt.Fprintf(out, "hyperkube is running already (process %d)\n", pid)
		return nil
	}
	s := progress.New(progress.Print(out))
	if o.discovery.Endpoint == "" && o.discoveryFile == "" && o.config == "" && identity.HasJoined(l) {
		if o.dryRun {
			return rehearseWrite(out, l, func(l layout.Node) error { return renewManifests(l, s, o.patches, o.verbose) }, tellUpgrade)
		}
		if isHalfMaster(l) {
			return o.finishMaster(ctx, out, l, s)
		}
		if err := renewManifests(l, s, o.patches, o.verbose); err != nil {
			return err
		}
		return o.start(ctx, l, s)
	}
	bootstrap, err := o.complete(ctx)
	if err != nil {
		return command.ConfigError(err)
	}
	if _, there, err := identity.Load(l); err != nil {
		return err
	} else if there {
		return command.PreflightError(fmt.Errorf("this machine has a cluster of its own in %s: take it away with `hyperkube reset` first", l.Data))
	}
	if !identity.HasJoined(l) {
		if err := o.ignored.check(out, l, o.ports(), nil); err != nil {
			return err
		}
	}
	began := time.Now()
	cluster, err := o.find(ctx, o.patience(s))
	if err != nil {
		return err
	}
	s.Done(began, "the cluster at %s is the one that is meant", o.discovery.Endpoint)
	if o.dryRun {
		return o.rehearse(ctx, out, l, cluster, bootstrap)
	}
	if o.asMaster {
		return o.joinMaster(ctx, out, l, cluster, bootstrap, s)
	}
	if err := o.prepare(ctx, l, cluster, bootstrap); err != nil {
		return err
	}
	if err := o.start(ctx, l, s); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nThis machine has joined the cluster: see it on a master with kubectl get nodes.\n")
	return nil
}

// ports are those that must be free.
func (o *joinOptions) ports() []int {
	ports := []int{layout.PortKubelet, layout.PortKubeletHealthz, layout.PortProxyHealthz}
	if o.asMaster {
		ports = append(ports, o.port, layout.PortEtcdClient, layout.PortEtcdPeer, layout.PortControllerManager, layout.PortScheduler)
	}
	return ports
}

// patience is how long the cluster is looked for.
func (o *joinOptions) patience(s *progress.Steps) progress.Patience {
	return progress.Patience{
		First: progress.FirstWord, Every: progress.EveryWord, Bound: o.waits.discovery(),
		Say: func(text string) { s.Send(progress.Step{Text: text, Waiting: true}) },
	}
}

// find asks the cluster who it is, and says what stands in the way.
func (o *joinOptions) find(ctx context.Context, p progress.Patience) (cluster *trust.Cluster, err error) {
	var last atomic.Pointer[error]
	o.discovery.Failed = func(err error) { last.Store(&err) }
	p.Advice = "`hyperkube token create --print-join-command` on a master prints a command that works"
	err = p.Wait(ctx, "the cluster at "+o.discovery.Endpoint, func(context.Context) string {
		if err := last.Load(); err != nil {
			return (*err).Error()
		}
		return ""
	}, func(ctx context.Context) (err error) {
		cluster, err = o.discovery.Find(ctx)
		return err
	})
	if err == nil && cluster.Ahead.Abs() > tellSkew {
		p.Say(trust.Skew(cluster.Ahead))
	}
	return cluster, err
}

// Masters must know the time alike, for each takes what another has signed a moment ago, and
// nobody signs for longer ago than maxSkew. Of nodes a difference of more than tellSkew is told:
// by then tokens of service accounts are taken for such of the future.
const (
	maxSkew  = 5 * time.Minute
	tellSkew = time.Minute
)

// start starts the node that was set up.
func (o *joinOptions) start(ctx context.Context, l layout.Node, s *progress.Steps) error {
	began := time.Now()
	if err := node.Start(ctx, l, o.verbose, o.startWithin(l), s); err != nil {
		return err
	}
	s.Done(began, "the node runs")
	return nil
}

// startWithin is how long the node that was set up may take to start.
func (o *joinOptions) startWithin(l layout.Node) time.Duration {
	if identity.IsMaster(l) {
		return o.waits.controlPlane()
	}
	return o.waits.worker()
}

// complete puts flags and configuration file together.
func (o *joinOptions) complete(ctx context.Context) (trust.Token, error) {
	if o.config != "" {
		if err := o.read(); err != nil {
			return trust.Token{}, fmt.Errorf("--config: %w", err)
		}
	}
	if o.discoveryFile != "" {
		if err := o.byFile(ctx); err != nil {
			return trust.Token{}, fmt.Errorf("--discovery-file: %w", err)
		}
	}
	return o.settle()
}

// byFile takes where the cluster is from the file of discovery.
func (o *joinOptions) byFile(ctx context.Context) error {
	if o.discoverToken != "" || o.discovery.Endpoint != "" || len(o.discovery.Hashes) > 0 || o.discovery.Unsafe {
		return errors.New("the cluster is told of by the file, or by HOST:PORT with a token and a hash, not by both")
	}
	return o.discovery.LoadFile(ctx, o.discoveryFile)
}

// settle checks what was said and settles what was left open. It returns the token
// with which the certificate is asked for.
func (o *joinOptions) settle() (trust.Token, error) {
	if o.discovery.Endpoint == "" {
		return trust.Token{}, errors.New("the address of the API server is missing: hyperkube join HOST:PORT, or --discovery-file")
	}
	var bootstrap trust.Token
	var err error
	if o.discoveryFile == "" {
		if o.discovery.Token, err = trust.ParseToken(cmp.Or(o.discoverToken, o.token)); err != nil {
			return trust.Token{}, err
		}
	}
	if token := cmp.Or(o.tlsToken, o.token, o.discoverToken); token != "" {
		if bootstrap, err = trust.ParseToken(token); err != nil {
			return trust.Token{}, err
		}
	} else if !o.discovery.EntersByFile() {
		return trust.Token{}, errors.New("nothing says with what the node asks for its certificate: give --tls-bootstrap-token, or a --discovery-file that has credentials")
	}
	if o.node.Name, err = o.node.ChosenName(); err != nil {
		return trust.Token{}, err
	}
	if o.asMaster {
		o.discovery.MaxSkew = maxSkew
	}
	return bootstrap, o.discovery.Validate()
}

// read takes from the configuration file what no flag says.
func (o *joinOptions) read() error {
	data, err := os.ReadFile(o.config)
	if err != nil {
		return err
	}
	return o.decode(data)
}

// decode takes from a configuration what no flag says.
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
		o.asMaster = true
		def(&o.certificateKey, c.CertificateKey)
		def(&o.advertise, c.LocalAPIEndpoint.AdvertiseAddress)
		if o.port == layout.PortAPIServer && c.LocalAPIEndpoint.BindPort != 0 {
			o.port = c.LocalAPIEndpoint.BindPort
		}
	}
	if file.Patches != nil {
		def(&o.patches, file.Patches.Directory)
	}
	if o.waits, err = file.Timeouts.waits(); err != nil {
		return err
	}
	o.dryRun = o.dryRun || file.DryRun
	o.ignored = append(o.ignored, file.NodeRegistration.IgnorePreflightErrors...)
	if o.node.Taints, err = file.NodeRegistration.taints(); err != nil {
		return err
	}
	if f := file.Discovery.File; f != nil {
		def(&o.discoveryFile, f.KubeConfigPath)
	}
	if b := file.Discovery.BootstrapToken; b != nil {
		def(&o.discoverToken, b.Token)
		def(&o.discovery.Endpoint, b.APIServerEndpoint)
		if len(o.discovery.Hashes) == 0 {
			o.discovery.Hashes = b.CACertHashes
		}
		o.discovery.Unsafe = o.discovery.Unsafe || b.UnsafeSkipCAVerification
	}
	return nil
}

// prepare asks the cluster what it is like, and writes what the node starts
// with.
func (o *joinOptions) prepare(ctx context.Context, l layout.Node, c *trust.Cluster, token trust.Token) error {
	kube, err := enterWith(c, token, o.waits.call())
	if err != nil {
		return err
	}
	cluster, kubelet, err := clusterLike(ctx, kube)
	if err != nil {
		return err
	}
	n := &o.node
	n.Kubeconfig = filepath.Join(l.Etc, "kubelet.conf")
	n.BootstrapKubeconfig = filepath.Join(l.Etc, "bootstrap-kubelet.conf")
	n.Rotate = true
	n.EnterWithin = o.waits.Bootstrap
	n.StaticPods = l.StaticPods()
	n.DNS, n.Domain = kubelet.ClusterDNS, kubelet.ClusterDomain
	n.ClusterCIDRs = list(cluster.Networking.PodSubnet)
	own, err := n.Addresses()
	if err != nil {
		return command.ConfigError(err)
	}
	if err := checkNameFree(ctx, kube, n.Name, own); err != nil {
		return err
	}
	n.ClientCA = filepath.Join(l.Etc, "pki", "ca.crt")
	// What says that this machine has joined comes first, so that reset knows.
	if err := n.Save(l); err != nil {
		return err
	}
	// An earlier try may have been for another cluster.
	if err := os.Remove(n.Kubeconfig); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the kubeconfig of an earlier try: %w", err)
	}
	for _, dir := range []string{filepath.Dir(n.ClientCA), n.StaticPods} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("making directories: %w", err)
		}
	}
	if err := atomicfile.Write(atomicfile.File{Path: n.ClientCA, Data: c.CA, Mode: 0o644}); err != nil {
		return fmt.Errorf("keeping the cluster's authority: %w", err)
	}
	data, err := clientcmd.Write(*c.Entry(token))
	if err == nil {
		err = atomicfile.Write(atomicfile.File{Path: n.BootstrapKubeconfig, Data: data, Mode: 0o600})
	}
	if err != nil {
		return fmt.Errorf("keeping how the cluster is entered: %w", err)
	}
	return nil
}

// enterWith reaches a cluster with a bootstrap token, or as the file says that told of it.
func enterWith(c *trust.Cluster, token trust.Token, within time.Duration) (kubernetes.Interface, error) {
	config, err := c.REST(token)
	if err != nil {
		return nil, err
	}
	config.Timeout = within
	return kubernetes.NewForConfig(config)
}

// clusterLike asks a cluster what it is like.
func clusterLike(ctx context.Context, kube kubernetes.Interface) (*clusterConfiguration, *kubeletv1beta1.KubeletConfiguration, error) {
	var cluster clusterConfiguration
	if err := readConfig(ctx, kube, trust.ClusterConfig, "ClusterConfiguration", &cluster); err != nil {
		return nil, nil, err
	}
	var kubelet kubeletv1beta1.KubeletConfiguration
	err := readConfig(ctx, kube, trust.KubeletConfig, "kubelet", &kubelet)
	return &cluster, &kubelet, err
}

// readConfig reads a document that init keeps in the cluster.
func readConfig(ctx context.Context, kube kubernetes.Interface, name, key string, into any) error {
	config, err := kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsUnauthorized(err) {
		return fmt.Errorf("the cluster does not know the token with which the node asks for its certificate, which may have expired or been deleted: "+
			"`hyperkube token create --print-join-command` on a master prints a command that works (%w)", err)
	}
	if err != nil {
		return fmt.Errorf("asking what the cluster is like: %w", err)
	}
	if err := yaml.Unmarshal([]byte(config.Data[key]), into); err != nil {
		return fmt.Errorf("reading the ConfigMap %s: %w", name, err)
	}
	return nil
}
