// Package masters is what operators know from kubeadm: init makes a master, join a node
// or a further master, reset lets one leave, and token, certs and config go with them.
package masters

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"hyperkube/components/cluster/certs"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/identity"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/progress"
	"hyperkube/components/cluster/trust"
	"hyperkube/components/kubelet/certificates"
	"hyperkube/internal/atomicfile"
	"hyperkube/internal/encryption"
	"hyperkube/internal/hostaddress"
	"hyperkube/internal/kubeconfig"
	"hyperkube/internal/layout"
	"hyperkube/internal/pki"
	"hyperkube/internal/version"
	"hyperkube/manifests"
)

// initOptions are the flags of `init`, under kubeadm's names.
type initOptions struct {
	root         string
	config       string
	noKubeconfig bool
	verbose      bool
	dryRun       bool
	// version is which Kubernetes is wished for.
	version string
	ignored ignored
	given   masterSettings
}

// NewInit makes the command `init`.
func NewInit() *cobra.Command {
	o := &initOptions{}
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make this machine the master of a new cluster",
		Long: "Make this machine the master of a new cluster: keys and kubeconfigs in /etc/kubernetes, the control plane as\n" +
			"static pods in /etc/kubernetes/manifests, and a node that runs them. It prints how other machines join.\n" +
			"Run again it starts what does not run, and changes what the flags or the configuration file say differently.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.Flags().Changed)
		},
	}
	o.register(cmd.Flags())
	cmd.AddCommand(newInitPhases())
	return cmd
}

// register adds the flags.
func (o *initOptions) register(f *pflag.FlagSet) {
	g := &o.given
	command.RootFlag(f, &o.root)
	f.StringVar(&o.config, "config", "", "Path of a kubeadm configuration file: InitConfiguration and ClusterConfiguration of v1beta4.")
	f.StringVar(&g.NodeName, "node-name", "", "Name of the node; empty is the hostname.")
	f.StringVar(&g.Advertise, "apiserver-advertise-address", "", "Address at which others reach the API server; empty is that of the default route's interface.")
	f.IntVar(&g.Port, "apiserver-bind-port", layout.PortAPIServer, "Port of the API server.")
	f.StringVar(&g.Endpoint, "control-plane-endpoint", "", "Stable name or address of the control plane, HOST[:PORT], such as that of a load balancer.")
	f.StringSliceVar(&g.SANs, "apiserver-cert-extra-sans", nil, "Further names and addresses of the API server's certificate.")
	f.StringSliceVar(&g.PodCIDRs, "pod-network-cidr", nil, "Range of pod addresses; empty chooses a free one.")
	f.StringSliceVar(&g.ServiceCIDRs, "service-cidr", nil, "Range of service addresses; empty chooses a free one.")
	f.StringVar(&g.Domain, "service-dns-domain", "", "Domain of the cluster; empty is cluster.local.")
	f.StringSliceVar(&g.With, "with", nil, "Add-ons besides the usual ones: "+strings.Join(manifests.Optional(), ", ")+".")
	f.StringSliceVar(&g.Skip, "skip-phases", nil, "Phases to be left out, now and later: "+strings.Join(skippable, ", ")+".")
	f.StringVar(&g.Patches, "patches", "", "Folder of patches of the static pods: COMPONENT[SUFFIX][+strategic|+merge|+json].yaml or .json.")
	f.BoolVar(&g.HideToken, "skip-token-print", false, "Do not print the token.")
	f.StringVar(&o.version, "kubernetes-version", "", "Version that is wished for: one of another minor than this program's is refused.")
	o.ignored.register(f)
	f.StringVar(&g.Token, "token", "", "Token with which machines join; empty makes one.")
	f.DurationVar(&g.TokenTTL, "token-ttl", trust.DefaultTTL, "How long the token lives; 0 is for ever.")
	f.BoolVar(&g.UploadCerts, "upload-certs", false, "Upload the keys that all masters share, encrypted, so that others can join as masters within two hours.")
	f.StringVar(&g.CertificateKey, "certificate-key", "", "Key that --upload-certs encrypts with; empty makes one.")
	f.BoolVar(&g.HideKey, "skip-certificate-key-print", false, "Do not print that key.")
	f.BoolVar(&o.noKubeconfig, "no-kubeconfig", false, "Leave the user's kubeconfig alone.")
	f.BoolVar(&o.dryRun, "dry-run", false, "Change nothing, and print what would be done.")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "Log debug messages, too.")
}

// run makes the master, or starts it again.
func (o *initOptions) run(ctx context.Context, out io.Writer, given func(string) bool) error {
	if err := command.NeedRoot(); err != nil {
		return err
	}
	l := command.Layout(o.root)
	settings, err := o.settings(l, given)
	if err != nil {
		return command.ConfigError(err)
	}
	m := &master{layout: l, settings: settings, steps: progress.New(progress.Print(out)), verbose: o.verbose, mergeKubeconfig: !o.noKubeconfig}
	if err := m.decide(); err != nil {
		return err
	}
	running, err := pidlock.Holder(l.PIDFile(layout.MainProcess))
	if err != nil {
		return err
	}
	if running == 0 && !m.settings.skips("preflight") {
		if err := o.ignored.check(out, l, m.ports(), settings.Ignored); err != nil {
			return err
		}
	}
	if o.dryRun || settings.DryRun {
		return m.rehearse(out, running != 0)
	}
	before := m.incumbent(ctx)
	defer before.Stop()
	began := time.Now()
	if err := m.prepare(); err != nil {
		return err
	}
	m.steps.Done(began, "keys, kubeconfigs and manifests are in %s", l.Etc)
	began = time.Now()
	if running == 0 {
		if err := node.Start(ctx, l, o.verbose, m.settings.Waits.controlPlane(), m.steps); err != nil {
			return err
		}
		m.steps.Done(began, "the control plane runs and node %q is known to it", m.identity.NodeName)
	}
	began = time.Now()
	if err := before.leave(ctx, m.patience()); err != nil {
		return err
	}
	token, err := m.configure(ctx)
	if err != nil {
		return err
	}
	m.steps.Done(began, "the cluster is ready to be joined")
	return m.tell(out, token)
}

// master is one run of `init`.
type master struct {
	layout          layout.Node
	settings        masterSettings
	steps           *progress.Steps
	verbose         bool
	mergeKubeconfig bool

	identity identity.Cluster
	// certificateKey is what the uploaded keys were encrypted with; nil: none
	// were.
	certificateKey *trust.CertificateKey
	// further: it has joined a cluster that has other masters.
	further bool
	// joining: it is about to, and not a part of the control plane yet.
	joining bool
	// etcdMembers are those that the machine's own has entered with; empty: it
	// was the first.
	etcdMembers string
	// address is where others reach the API server and etcd, addresses are all
	// of the node, beginning with it.
	address   netip.Addr
	addresses []netip.Addr
	pki       *pki.Set
}

// decide settles what was left open, and keeps it for later runs.
func (m *master) decide() error {
	id, there, err := identity.Load(m.layout)
	if err != nil {
		return err
	}
	if there {
		if !identity.HasJoined(m.layout) {
			return command.PreflightError(fmt.Errorf("a cluster made by `hyperkube up` is in %s: take it away with `hyperkube reset` first", m.layout.Data))
		}
		if err := m.settings.checkKept(id); err != nil {
			return command.ConfigError(err)
		}
	} else {
		if identity.HasJoined(m.layout) {
			return command.PreflightError(errors.New("this machine has joined a cluster: `hyperkube join` starts it again, `hyperkube reset` takes it out"))
		}
		s := m.settings
		if id, err = identity.New(identity.Cluster{NodeName: s.NodeName, PodCIDRs: s.PodCIDRs, ServiceCIDRs: s.ServiceCIDRs, Domain: s.Domain}); err != nil {
			return err
		}
	}
	if m.settings.Endpoint != "" {
		id.Endpoint = m.settings.Endpoint
	}
	m.settings.Endpoint = id.Endpoint
	if err := id.Want(m.settings.With); err != nil {
		return err
	}
	m.identity = id
	if err := m.decideCertificateKey(); err != nil {
		return err
	}
	return m.decideAddress()
}

// decideCertificateKey settles with what the keys are encrypted that are uploaded.
func (m *master) decideCertificateKey() error {
	if !m.settings.UploadCerts {
		return nil
	}
	key := trust.NewCertificateKey()
	if m.settings.CertificateKey != "" {
		var err error
		if key, err = trust.ParseCertificateKey(m.settings.CertificateKey); err != nil {
			return command.ConfigError(fmt.Errorf("--certificate-key: %w", err))
		}
	}
	m.certificateKey = &key
	return nil
}

// decideAddress settles at which addresses others reach this machine.
func (m *master) decideAddress() error {
	var err error
	if m.addresses, err = identity.NodeAddresses(m.identity.PodCIDRs); err != nil {
		return err
	}
	if m.settings.Advertise != "" {
		if m.address, err = netip.ParseAddr(m.settings.Advertise); err != nil {
			return command.ConfigError(fmt.Errorf("--apiserver-advertise-address: %w", err))
		}
		m.addresses = slices.DeleteFunc(m.addresses, func(a netip.Addr) bool { return hostaddress.Family(a) == hostaddress.Family(m.address) })
		m.addresses = append([]netip.Addr{m.address}, m.addresses...)
		return nil
	}
	if len(m.addresses) == 0 {
		return command.PreflightError(errors.New("this machine has no address that others could reach: give --apiserver-advertise-address"))
	}
	m.address = m.addresses[0]
	return nil
}

// ports are those that must be free. The control plane of a master that is
// started again may have outlived its node.
func (m *master) ports() []int {
	ports := []int{layout.PortKubelet, layout.PortKubeletHealthz, layout.PortProxyHealthz}
	if identity.HasJoined(m.layout) {
		return ports
	}
	return append(ports, m.settings.Port, layout.PortEtcdClient, layout.PortEtcdPeer, layout.PortControllerManager, layout.PortScheduler)
}

// server is the URL of the API server as other machines reach it, and own as
// this one does.
func (m *master) server() string {
	if m.settings.Endpoint == "" {
		return m.own()
	}
	if _, _, err := net.SplitHostPort(m.settings.Endpoint); err != nil {
		return "https://" + net.JoinHostPort(m.settings.Endpoint, fmt.Sprint(m.settings.Port))
	}
	return "https://" + m.settings.Endpoint
}

func (m *master) own() string {
	return "https://" + netip.AddrPortFrom(m.address, uint16(m.settings.Port)).String()
}

func (m *master) pkiDir() string          { return filepath.Join(m.layout.Etc, "pki") }
func (m *master) encryptionFile() string  { return filepath.Join(m.pkiDir(), "encryption.yaml") }
func (m *master) conf(name string) string { return filepath.Join(m.layout.Etc, name+".conf") }

// prepare writes everything that is on disk before the node starts.
func (m *master) prepare() error {
	options, err := m.found()
	if err != nil {
		return err
	}
	if err := m.kubeconfigs(options, masterKubeconfigs...); err != nil {
		return err
	}
	return m.staticPods(manifests.Components()...)
}

// masterKubeconfigs are those of a first master besides the kubelet's.
var masterKubeconfigs = []string{"admin", "super-admin", "controller-manager", "scheduler"}

// found makes keys, and keeps what says that this machine is a master before all that
// follows from it, so that reset knows.
func (m *master) found() (*node.Options, error) {
	if err := m.keys(); err != nil {
		return nil, err
	}
	options, err := m.nodeOptions()
	if err != nil {
		return nil, err
	}
	if err := options.Save(m.layout); err != nil {
		return nil, err
	}
	if err := m.identity.Save(m.layout); err != nil {
		return nil, err
	}
	return options, m.keepSettings()
}

// pkiConfig says for what names this master's certificates are.
func (m *master) pkiConfig() (pki.Config, error) {
	cfg := pki.Config{
		NodeName: m.identity.NodeName, ClusterDomain: m.identity.Domain,
		NodeAddresses: []net.IP{m.address.AsSlice()}, ExtraNames: m.settings.SANs,
	}
	if host, _, err := net.SplitHostPort(strings.TrimPrefix(m.server(), "https://")); err == nil {
		cfg.ExtraNames = append(cfg.ExtraNames, host)
	}
	for _, cidr := range m.identity.ServiceCIDRs {
		first, err := identity.NthAddress(cidr, 1)
		if err != nil {
			return cfg, command.ConfigError(err)
		}
		cfg.ServiceAddresses = append(cfg.ServiceAddresses, first.AsSlice())
	}
	return cfg, nil
}

// keys makes what is missing of keys and certificates.
func (m *master) keys() error {
	cfg, err := m.pkiConfig()
	if err != nil {
		return err
	}
	if m.pki, err = pki.Ensure(m.pkiDir(), cfg); err != nil {
		return m.withMissing(err)
	}
	if err := m.bring(); err != nil {
		return err
	}
	return encryption.Ensure(m.encryptionFile())
}

// Options are those of the master's own node.
func (m *master) nodeOptions() (*node.Options, error) {
	serving := &pki.Pair{} // the kubelet's own
	if !m.external() {
		var err error
		if serving, err = m.pki.CA.EnsurePair(filepath.Join(m.layout.Kubelet, "pki", "kubelet"),
			pki.KubeletServer(m.identity.NodeName, node.ServingNames(m.addresses)...)); err != nil {
			return nil, err
		}
	}
	return &node.Options{
		Kubeconfig: m.conf("kubelet"), ProxyKubeconfig: filepath.Join(m.layout.Data, "proxy.conf"), Rotate: true, Name: m.identity.NodeName, IP: strings.Join(identity.Texts(m.addresses), ","),
		StaticPods: m.layout.StaticPods(), DNS: []string{m.identity.DNSAddress}, Domain: m.identity.Domain,
		ClusterCIDRs: m.identity.PodCIDRs, ClientCA: m.pki.CA.CertFile,
		CertFile: serving.CertFile, KeyFile: serving.KeyFile,
	}, nil
}

// kubeconfigs writes those of the names, which are kubeadm's, and the kubelet's.
func (m *master) kubeconfigs(node *node.Options, names ...string) error {
	for _, c := range []struct {
		name, user, server string
		groups             []string
	}{
		{"admin", "kubernetes-admin", m.server(), []string{trust.AdminGroup}},
		{"super-admin", "kubernetes-super-admin", m.server(), []string{"system:masters"}},
		{"controller-manager", "system:kube-controller-manager", m.own(), nil},
		{"scheduler", "system:kube-scheduler", m.own(), nil},
	} {
		if !slices.Contains(names, c.name) {
			continue
		}
		pair, err := m.pki.CA.EnsurePair(filepath.Join(m.layout.Data, "kubeconfig-keys", c.name), pki.Client(c.user, c.groups...))
		if err != nil {
			return err
		}
		cfg := kubeconfig.Config{Name: m.settings.clusterName(), User: c.user, Server: c.server, CA: m.pki.CA.CertPEM, Cert: pair.CertPEM, Key: pair.KeyPEM}
		if err := kubeconfig.Write(m.conf(c.name), cfg); err != nil {
			return err
		}
	}
	// The proxy of this machine needs none of the bindings that are only made
	// when the node is there.
	proxy, err := m.pki.CA.EnsurePair(filepath.Join(m.layout.Data, "kubeconfig-keys", "proxy"), pki.Client("system:kube-proxy"))
	if err != nil {
		return err
	}
	if err := kubeconfig.Write(node.ProxyKubeconfig, kubeconfig.Config{
		Name: m.settings.clusterName(), User: "system:kube-proxy", Server: m.own(), CA: m.pki.CA.CertPEM, CertFile: proxy.CertFile, KeyFile: proxy.KeyFile,
	}); err != nil {
		return err
	}
	pair, err := m.nodePair()
	if err != nil {
		return err
	}
	return certificates.Put(node.Certificates(m.layout), m.own(), m.pki.CA.CertPEM, pair.CertPEM, pair.KeyPEM)
}

// staticPods writes the manifests of those components. Those that say the same
// already are left alone, so that nothing restarts.
func (m *master) staticPods(components ...string) error {
	advertise := m.address.String()
	host := advertise
	if m.address.Is6() {
		host = "[" + host + "]"
	}
	values := manifests.ControlPlane{
		Image: version.Image(), NodeName: m.identity.NodeName, Advertise: advertise, AdvertiseURL: host, Port: m.settings.Port,
		Etc: m.layout.Etc, PKI: m.pkiDir(), Encryption: m.encryptionFile(), EtcdData: m.layout.Etcd(), EtcdMembers: m.etcdMembers, EtcdShared: m.settings.Endpoint != "",
		PodCIDR: strings.Join(m.identity.PodCIDRs, ","), ServiceCIDR: strings.Join(m.identity.ServiceCIDRs, ","),
		SignsElsewhere: identity.SignsElsewhere(m.layout), Domain: m.identity.Domain, Extra: m.settings.Extra, Volumes: m.settings.Volumes, Envs: m.settings.Envs,
	}
	var err error
	if values.ClientCertificates, err = certs.ClientStamps(m.layout); err != nil {
		return err
	}
	if err := os.MkdirAll(m.layout.StaticPods(), 0o755); err != nil {
		return fmt.Errorf("making the directory of static pods: %w", err)
	}
	// Nobody else has any business in it; made for the pod it would be open to all.
	if err := errors.Join(os.MkdirAll(m.layout.Etcd(), 0o700), os.Chmod(m.layout.Etcd(), 0o700)); err != nil {
		return fmt.Errorf("making the directory of etcd: %w", err)
	}
	changes, err := readPatches(m.settings.Patches)
	if err != nil {
		return command.ConfigError(err)
	}
	for _, name := range components {
		data, err := values.StaticPod(name)
		if err != nil {
			return err
		}
		if data, err = changes.apply(name, data); err != nil {
			return command.ConfigError(err)
		}
		path := filepath.Join(m.layout.StaticPods(), name+".yaml")
		if old, err := os.ReadFile(path); err == nil && string(old) == string(data) {
			continue
		}
		if err := atomicfile.Write(atomicfile.File{Path: path, Data: data, Mode: 0o600}); err != nil {
			return fmt.Errorf("writing the manifest of %s: %w", name, err)
		}
	}
	return nil
}

// enter merges the administrator's kubeconfig into the user's, if that is wanted.
func (m *master) enter() error {
	if !m.mergeKubeconfig {
		return nil
	}
	target, err := kubeconfig.UserTarget(os.Getenv)
	if err != nil {
		return err
	}
	pair, err := m.pki.CA.EnsurePair(filepath.Join(m.layout.Data, "kubeconfig-keys", "admin"), pki.Client("kubernetes-admin", trust.AdminGroup))
	if err != nil {
		return err
	}
	return target.Merge(kubeconfig.Config{Name: kubeconfig.DefaultName, Server: m.server(), CA: m.pki.CA.CertPEM, Cert: pair.CertPEM, Key: pair.KeyPEM})
}

// tell merges the kubeconfig and prints how other machines join.
func (m *master) tell(out io.Writer, token trust.Token) error {
	if err := m.enter(); err != nil {
		return err
	}
	if m.settings.skips("show-join-command") {
		return nil
	}
	join := m.joinCommand(token)
	fmt.Fprintf(out, "\nThis machine is a master of Kubernetes %s. Other machines join with:\n\n  %s\n\n", version.Get().GitVersion, join)
	if m.certificateKey != nil && !m.settings.HideKey {
		fmt.Fprintf(out, "Further masters join, within two hours, with:\n\n  %s\n\n", join+masterFlags(m.certificateKey.String()))
	}
	fmt.Fprintf(out, "No pods of users run here; to let them: kubectl taint nodes %s node-role.kubernetes.io/control-plane-\n", m.identity.NodeName)
	return nil
}

// masterFlags are what makes of the command with which a machine joins that of
// a master.
func masterFlags(certificateKey string) string {
	return " --control-plane --certificate-key " + certificateKey
}

// joinCommand is what is typed on a machine that is to join this master's cluster, without
// the token if that is not to be printed.
func (m *master) joinCommand(token trust.Token) string {
	text := token.String()
	if m.settings.HideToken {
		text = "<value withheld>"
	}
	return joinCommand(m.server(), text, m.pki.CA.Cert)
}

// joinCommand is what is typed on a machine that is to join.
func joinCommand(server, token string, ca *x509.Certificate) string {
	return fmt.Sprintf("hyperkube join %s --token %s --discovery-token-ca-cert-hash %s",
		strings.TrimPrefix(server, "https://"), token, trust.Hash(ca))
}
