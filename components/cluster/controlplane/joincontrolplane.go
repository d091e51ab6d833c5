package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/etcdmembers"
	"hyperkube/components/cluster/joindiscovery"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/progress"
	"hyperkube/components/etcd"
	"hyperkube/internal/client"
	"hyperkube/internal/host/atomicfile"
	"hyperkube/internal/host/layout"
	"hyperkube/manifests"
)

// additionalNodeState is the state that an additional control plane node stores on disk: what is needed to write its
// manifests again, and to resume an interrupted join.
type additionalNodeState struct {
	Identity clusterconfig.Cluster `json:"identity"`
	Settings controlPlaneSettings  `json:"settings"`
	// EtcdMembers is the value of --initial-cluster with which the local etcd member joined.
	EtcdMembers string `json:"etcdMembers,omitempty"`
	// Joining is set until the machine is part of the control plane.
	Joining bool `json:"joining,omitempty"`
}

// additionalNodeFile returns the path of the file with the additionalNodeState of this machine.
func additionalNodeFile(l layout.Node) string { return filepath.Join(l.Data, "master.json") }

// loadAdditionalNode reads the additionalNodeState of this machine. It returns nil if the machine is not an additional
// control plane node.
func loadAdditionalNode(l layout.Node) (*additionalNodeState, error) {
	data, err := os.ReadFile(additionalNodeFile(l))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var f additionalNodeState
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if err != nil {
		return nil, fmt.Errorf("reading settings of this control plane node: %w", err)
	}
	return &f, nil
}

// save stores the additionalNodeState of this machine.
func (m *controlPlaneNode) save() error {
	data, err := json.MarshalIndent(additionalNodeState{Identity: m.identity, Settings: m.settings, EtcdMembers: m.etcdMembers, Joining: m.joining}, "", "  ")
	if err == nil {
		err = atomicfile.Write(atomicfile.File{Path: additionalNodeFile(m.layout), Data: append(data, '\n'), Mode: 0o600})
	}
	if err != nil {
		return fmt.Errorf("saving settings of this control plane node: %w", err)
	}
	return nil
}

// rewriteManifests writes the static pod manifests of an additional control plane node again, because this program may
// have another version than the one that wrote them. It does nothing on the first control plane node and on workers.
// patches, unless empty, is a directory of patches that replaces the stored one. s reports progress.
func rewriteManifests(l layout.Node, s *progress.Steps, patches string, verbose bool) error {
	stored, err := loadAdditionalNode(l)
	if err != nil || stored == nil || stored.EtcdMembers == "" {
		return err
	}
	m := &controlPlaneNode{layout: l, settings: stored.Settings, identity: stored.Identity, etcdMembers: stored.EtcdMembers, steps: s, verbose: verbose}
	if err := m.completeAddresses(); err != nil {
		return err
	}
	if err := m.credentials().ensureKeys(); err != nil {
		return err
	}
	if patches != "" {
		if m.settings.Patches, err = absolutePath(patches); err != nil {
			return err
		}
		m.joining = stored.Joining
		if err := m.save(); err != nil {
			return err
		}
	}
	return m.writeStaticPods(manifests.Components()...)
}

// joinControlPlane makes this machine an additional control plane node: it gets the shared certificates
// and keys, an etcd member and static pods.
func (o *joinOptions) joinControlPlane(ctx context.Context, out io.Writer, l layout.Node, c *joindiscovery.Cluster, token joindiscovery.Token, s *progress.Steps) error {
	began := time.Now()
	m := &controlPlaneNode{layout: l, steps: s, verbose: o.verbose, mergeKubeconfig: !o.noKubeconfig, joining: true}
	kube, err := joinClient(c, token, o.timeouts.call())
	if err != nil {
		return err
	}
	if err := o.configureNode(ctx, m, kube); err != nil {
		return err
	}
	if err := o.ensureSharedFiles(ctx, m, c, kube); err != nil {
		return err
	}
	options, err := m.member().setUpAdditional()
	if err != nil {
		return err
	}
	if err := m.credentials().writeKubeconfigs(options, additionalNodeKubeconfigs...); err != nil {
		return err
	}
	s.Done(began, "certificates and kubeconfigs written to %s", l.Etc)
	return m.member().completeJoin(ctx, out)
}

// isJoinIncomplete reports whether an earlier attempt to join as a control plane node was interrupted.
func isJoinIncomplete(l layout.Node) bool {
	stored, err := loadAdditionalNode(l)
	return err == nil && stored != nil && stored.Joining
}

// resumeJoin resumes an earlier, interrupted attempt to join as a control plane node. It returns an error if that
// attempt has not written the kubeconfigs.
func (o *joinOptions) resumeJoin(ctx context.Context, out io.Writer, l layout.Node, s *progress.Steps) error {
	stored, err := loadAdditionalNode(l)
	if err != nil {
		return err
	}
	if !layout.Exists(filepath.Join(l.Etc, "scheduler.conf")) {
		return command.PreflightError(errors.New("an earlier attempt to join was interrupted too early: run the complete command again, which `hyperkube token create --print-join-command` prints on a control plane node"))
	}
	m := &controlPlaneNode{
		layout: l, steps: s, verbose: o.verbose, mergeKubeconfig: !o.noKubeconfig,
		settings: stored.Settings, identity: stored.Identity, etcdMembers: stored.EtcdMembers, joining: true,
	}
	if err := m.completeAddresses(); err != nil {
		return err
	}
	if err := m.credentials().ensureKeys(); err != nil {
		return err
	}
	return m.member().completeJoin(ctx, out)
}

// completeJoin joins etcd, starts the control plane of this machine, whose keys and kubeconfigs exist already, marks
// the node as a control plane node, and saves that the join is complete. It first stops a node process that an
// earlier attempt has started. At the end it adds the cluster to the kubeconfig of the user.
func (m memberJoin) completeJoin(ctx context.Context, out io.Writer) error {
	// An earlier attempt may have left a node process that waits for missing files.
	if err := stopNode(ctx, m.layout, m.steps); err != nil {
		return err
	}
	began := time.Now()
	if err := m.withEtcdMember(ctx, m.startAndPromote); err != nil {
		return err
	}
	m.steps.Done(began, "control plane started and node %q registered", m.identity.NodeName)
	if err := m.markSelf(ctx); err != nil {
		return err
	}
	if err := m.saveJoined(); err != nil {
		return err
	}
	if err := m.credentials().mergeAdminKubeconfig(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nThis node has joined the cluster at %s and a new control plane instance was created.\n\nRun 'kubectl get nodes' to see this node join the cluster.\n", m.server())
	return nil
}

// saveJoined saves in the stored state of this node that its join is complete, so that join does not resume it.
func (m *controlPlaneNode) saveJoined() error {
	m.joining = false
	return m.save()
}

// withEtcdMember adds an etcd member for this machine, unless it exists, and calls then with the
// connection to the other members.
func (m memberJoin) withEtcdMember(ctx context.Context, then func(ctx context.Context, others *etcdmembers.Cluster) error) error {
	others, err := m.etcdCluster(ctx)
	if err != nil {
		return err
	}
	defer others.Close()
	if err := m.addEtcdMember(ctx, others); err != nil {
		return err
	}
	return then(ctx, others)
}

// markSelf adds the label and taints of a control plane node to this machine's Node, with a request to this machine's
// API server.
func (m memberJoin) markSelf(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags(m.localURL(), m.kubeconfigPath("admin"))
	if err != nil {
		return fmt.Errorf("reading administrator kubeconfig: %w", err)
	}
	clients, err := client.New(client.Config{REST: config})
	if err != nil {
		return err
	}
	return m.setup().mark(ctx, clients)
}

// configureNode sets the settings and the identity of m, the additional control plane node that this machine becomes,
// from the flags and the configuration of the cluster. It returns an error if the cluster has no stable control plane
// endpoint.
func (o *joinOptions) configureNode(ctx context.Context, m *controlPlaneNode, kube kubernetes.Interface) error {
	cluster, kubelet, err := readClusterConfiguration(ctx, kube)
	if err != nil {
		return err
	}
	if cluster.ControlPlaneEndpoint == "" {
		return command.PreflightError(errors.New("unable to add a new control plane instance to a cluster that doesn't have a stable controlPlaneEndpoint address: " +
			"run `hyperkube init` with --control-plane-endpoint on its control plane node"))
	}
	if m.settings.Patches, err = absolutePath(o.patches); err != nil {
		return err
	}
	m.settings.applyCluster(cluster)
	m.settings.Advertise, m.settings.Port, m.settings.Taints, m.settings.Waits = o.advertise, o.port, o.node.Taints, o.timeouts
	m.settings.NoSeccompDefault, m.settings.ProxyMode, m.settings.CloudProvider = o.node.NoSeccompDefault, o.node.ProxyMode, o.node.CloudProvider
	m.identity = clusterconfig.Cluster{
		NodeName: o.node.Name, PodCIDRs: m.settings.PodCIDRs, ServiceCIDRs: m.settings.ServiceCIDRs,
		Domain: kubelet.ClusterDomain, Endpoint: m.settings.Endpoint,
	}
	if len(kubelet.ClusterDNS) > 0 {
		m.identity.DNSAddress = kubelet.ClusterDNS[0]
	}
	if err := m.completeAddresses(); err != nil {
		return err
	}
	if o.node.IP != "" {
		if m.addresses, err = o.node.Addresses(); err != nil {
			return command.ConfigError(err)
		}
	}
	if err := checkNameFree(ctx, kube, m.identity.NodeName, m.addresses); err != nil {
		return err
	}
	stored, err := loadAdditionalNode(m.layout)
	if err == nil && stored != nil {
		m.etcdMembers = stored.EtcdMembers // an earlier attempt has added the member
	}
	return err
}

// ensureSharedFiles downloads the certificates and keys that all control plane nodes share. It returns an error if
// they belong to another cluster. Without a certificate key it checks that an administrator has copied them.
func (o *joinOptions) ensureSharedFiles(ctx context.Context, m *controlPlaneNode, c *joindiscovery.Cluster, kube kubernetes.Interface) error {
	if o.certificateKey == "" {
		for _, name := range joindiscovery.SharedFiles() {
			if path := filepath.Join(m.pkiDir(), name); !layout.Exists(path) {
				return command.PreflightError(fmt.Errorf("%s is missing: specify --certificate-key, which `hyperkube init --upload-certs` prints on a control plane node", path))
			}
		}
		return nil
	}
	key, err := joindiscovery.ParseCertificateKey(o.certificateKey)
	if err != nil {
		return command.ConfigError(fmt.Errorf("--certificate-key: %w", err))
	}
	secret, err := kube.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, joindiscovery.CertsSecret, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("downloading certificates, which `hyperkube init --upload-certs` uploads for two hours: %w", err)
	}
	files, err := joindiscovery.OpenCerts(secret, key)
	if err != nil {
		return err
	}
	if !bytes.Contains(c.CA, bytes.TrimSpace(files["ca.crt"])) {
		return errors.New("the uploaded certificates belong to another cluster")
	}
	if err := os.MkdirAll(filepath.Join(m.pkiDir(), "etcd"), 0o755); err != nil {
		return fmt.Errorf("creating directory of certificates: %w", err)
	}
	var write []atomicfile.File
	for _, name := range joindiscovery.SharedFiles() {
		mode := os.FileMode(0o600)
		if strings.HasSuffix(name, ".crt") {
			mode = 0o644
		}
		write = append(write, atomicfile.File{Path: filepath.Join(m.pkiDir(), name), Data: files[name], Mode: mode})
	}
	if err := atomicfile.Write(write...); err != nil {
		return fmt.Errorf("writing certificates: %w", err)
	}
	return nil
}

// additionalNodeKubeconfigs are the kubeconfigs of an additional control plane node, except that of the
// kubelet.
var additionalNodeKubeconfigs = []string{"admin", "controller-manager", "scheduler"}

// setUpAdditional creates the keys of an additional control plane node and saves its options and state.
// They are saved before everything that depends on them, so that reset finds a partially joined
// node.
func (m memberJoin) setUpAdditional() (*node.Options, error) {
	if err := m.credentials().ensureKeys(); err != nil {
		return nil, err
	}
	options, err := m.nodeOptions()
	if err != nil {
		return nil, err
	}
	if err := options.Save(m.layout); err != nil {
		return nil, err
	}
	return options, m.save()
}

// etcdURL returns the URL of this machine's etcd member for clients or peers, depending on the
// port.
func (m memberJoin) etcdURL(port int) string {
	return "https://" + netip.AddrPortFrom(m.address, uint16(port)).String()
}

// etcdCluster connects to the existing etcd members. It finds them by the etcd pods of other
// control plane nodes.
func (m memberJoin) etcdCluster(ctx context.Context) (*etcdmembers.Cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", m.kubeconfigPath("admin"))
	if err != nil {
		return nil, fmt.Errorf("reading administrator kubeconfig: %w", err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	urls, err := etcdURLs(ctx, kube, true)
	if err != nil {
		return nil, err
	}
	return etcdmembers.Dial(urls, etcdDialer(m.pkiDir()), slog.Default())
}

// The label selector of the static pods of etcd, and the annotation with the client URL of a
// member. Both are those of kubeadm.
const (
	etcdPods          = "component=etcd,tier=control-plane"
	etcdURLAnnotation = "kubeadm.kubernetes.io/etcd.advertise-client-urls"
)

// etcdURLs returns the client URLs of the etcd members from the annotations of their pods. A
// machine may join before the first control plane node has registered its pods: wait allows a short
// delay.
func etcdURLs(ctx context.Context, kube kubernetes.Interface, wait bool) ([]string, error) {
	pods, err := kube.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: etcdPods})
	if err != nil {
		return nil, fmt.Errorf("listing pods of etcd: %w", err)
	}
	var urls []string
	for i := range pods.Items {
		if url := pods.Items[i].Annotations[etcdURLAnnotation]; url != "" {
			urls = append(urls, url)
		}
	}
	if len(urls) == 0 && wait {
		if urls, err = firstEtcdURL(ctx, kube, pods.ResourceVersion); err != nil {
			return nil, err
		}
	}
	if len(urls) == 0 {
		return nil, errors.New("no etcd pod found in the cluster: control plane nodes can only join clusters whose control plane nodes run etcd")
	}
	return urls, nil
}

// etcdPodTimeout is how long a joining node waits for the pod of etcd to appear in the API. The
// kubelet of the first control plane node can create this mirror pod later than etcd starts.
const etcdPodTimeout = 10 // seconds

// firstEtcdURL waits for a pod of etcd and returns its client URL. It returns nothing if there is
// none within etcdPodTimeout.
func firstEtcdURL(ctx context.Context, kube kubernetes.Interface, after string) ([]string, error) {
	limit := int64(etcdPodTimeout)
	w, err := kube.CoreV1().Pods(metav1.NamespaceSystem).Watch(ctx, metav1.ListOptions{
		LabelSelector: etcdPods, ResourceVersion: after, TimeoutSeconds: &limit,
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for pods of etcd: %w", err)
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if pod, ok := event.Object.(*corev1.Pod); ok && pod.Annotations[etcdURLAnnotation] != "" {
			return []string{pod.Annotations[etcdURLAnnotation]}, nil
		}
	}
	return nil, ctx.Err()
}

// etcdDialer returns a function that connects to etcd with the client certificate in pkiDir.
func etcdDialer(pkiDir string) etcdmembers.Dialer {
	return func(urls []string) (*clientv3.Client, error) {
		base := filepath.Join(pkiDir, "etcd", "healthcheck-client")
		return etcd.Dial(etcd.DialConfig{
			Servers: urls, CAFile: filepath.Join(pkiDir, "etcd", "ca.crt"), CertFile: base + ".crt", KeyFile: base + ".key",
		})
	}
}

// addEtcdMember adds this machine's etcd as a learner, unless an earlier attempt has done so.
func (m memberJoin) addEtcdMember(ctx context.Context, others *etcdmembers.Cluster) error {
	if m.etcdMembers != "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, m.settings.Waits.etcd())
	defer cancel()
	var err error
	if m.etcdMembers, err = others.AddLearner(ctx, m.identity.NodeName, m.etcdURL(layout.PortEtcdPeer)); err != nil {
		return err
	}
	return m.save()
}

// startAndPromote starts the node with etcd only. The other components start when the member is promoted,
// because a learner does not serve requests.
func (m memberJoin) startAndPromote(ctx context.Context, others *etcdmembers.Cluster) error {
	if err := m.writeStaticPods("etcd"); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return node.Start(ctx, m.layout, m.verbose, m.settings.Waits.controlPlane(), m.steps) })
	group.Go(func() error {
		began := time.Now()
		ctx, cancel := context.WithTimeout(ctx, m.settings.Waits.etcd())
		defer cancel()
		if err := others.Promote(ctx, m.etcdURL(layout.PortEtcdPeer)); err != nil {
			return fmt.Errorf("%w; see the logs below %s and %s", err, m.layout.PodLogs, m.layout.Log(layout.MainProcess))
		}
		m.steps.Done(began, "etcd member promoted")
		return m.writeStaticPods(manifests.Components()...)
	})
	return group.Wait()
}
