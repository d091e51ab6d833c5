package masters

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

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/identity"
	"hyperkube/components/cluster/members"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/progress"
	"hyperkube/components/cluster/trust"
	"hyperkube/components/etcd"
	"hyperkube/internal/atomicfile"
	"hyperkube/internal/client"
	"hyperkube/internal/layout"
	"hyperkube/manifests"
)

// furtherMaster is what a machine keeps that has joined as a master, so that
// its manifests can be written again.
type furtherMaster struct {
	Identity identity.Cluster `json:"identity"`
	Settings masterSettings   `json:"settings"`
	// EtcdMembers are those that its own has entered with.
	EtcdMembers string `json:"etcdMembers,omitempty"`
	// Joining: it is not a part of the control plane yet.
	Joining bool `json:"joining,omitempty"`
}

func furtherMasterFile(l layout.Node) string { return filepath.Join(l.Data, "master.json") }

func loadFurtherMaster(l layout.Node) (*furtherMaster, error) {
	data, err := os.ReadFile(furtherMasterFile(l))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var f furtherMaster
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if err != nil {
		return nil, fmt.Errorf("reading what this master is like: %w", err)
	}
	return &f, nil
}

func (m *master) keep() error {
	data, err := json.MarshalIndent(furtherMaster{Identity: m.identity, Settings: m.settings, EtcdMembers: m.etcdMembers, Joining: m.joining}, "", "  ")
	if err == nil {
		err = atomicfile.Write(atomicfile.File{Path: furtherMasterFile(m.layout), Data: append(data, '\n'), Mode: 0o600})
	}
	if err != nil {
		return fmt.Errorf("keeping what this master is like: %w", err)
	}
	return nil
}

// renewManifests writes the static pods of a machine that has joined as a
// master as this version has them, with the patches of a folder from now on unless that is "".
func renewManifests(l layout.Node, s *progress.Steps, patches string, verbose bool) error {
	kept, err := loadFurtherMaster(l)
	if err != nil || kept == nil || kept.EtcdMembers == "" {
		return err
	}
	m := &master{layout: l, settings: kept.Settings, identity: kept.Identity, etcdMembers: kept.EtcdMembers, steps: s, verbose: verbose}
	if err := m.decideAddress(); err != nil {
		return err
	}
	if err := m.keys(); err != nil {
		return err
	}
	if patches != "" {
		if m.settings.Patches, err = absolute(patches); err != nil {
			return err
		}
		m.joining = kept.Joining
		if err := m.keep(); err != nil {
			return err
		}
	}
	return m.staticPods(manifests.Components()...)
}

// joinMaster makes this machine a further master: with the keys that masters
// share, a member of etcd, and static pods.
func (o *joinOptions) joinMaster(ctx context.Context, out io.Writer, l layout.Node, c *trust.Cluster, token trust.Token, s *progress.Steps) error {
	began := time.Now()
	m := &master{layout: l, steps: s, verbose: o.verbose, mergeKubeconfig: !o.noKubeconfig, joining: true}
	kube, err := enterWith(c, token, o.waits.call())
	if err != nil {
		return err
	}
	if err := o.become(ctx, m, kube); err != nil {
		return err
	}
	if err := o.sharedFiles(ctx, m, c, kube); err != nil {
		return err
	}
	options, err := m.startKeys()
	if err != nil {
		return err
	}
	if err := m.kubeconfigs(options, furtherKubeconfigs...); err != nil {
		return err
	}
	s.Done(began, "keys and kubeconfigs are in %s", l.Etc)
	return m.finish(ctx, out)
}

// isHalfMaster tells whether an earlier try to become a further master ended half way.
func isHalfMaster(l layout.Node) bool {
	kept, err := loadFurtherMaster(l)
	return err == nil && kept != nil && kept.Joining
}

// finishMaster makes this machine the master that an earlier try has prepared.
func (o *joinOptions) finishMaster(ctx context.Context, out io.Writer, l layout.Node, s *progress.Steps) error {
	kept, err := loadFurtherMaster(l)
	if err != nil {
		return err
	}
	if !layout.Exists(filepath.Join(l.Etc, "scheduler.conf")) {
		return command.PreflightError(errors.New("an earlier try to join did not come far enough: join again with the whole command, which `hyperkube token create --print-join-command` prints on a master"))
	}
	m := &master{
		layout: l, steps: s, verbose: o.verbose, mergeKubeconfig: !o.noKubeconfig,
		settings: kept.Settings, identity: kept.Identity, etcdMembers: kept.EtcdMembers, joining: true,
	}
	if err := m.decideAddress(); err != nil {
		return err
	}
	if err := m.keys(); err != nil {
		return err
	}
	return m.finish(ctx, out)
}

// finish makes this machine, which has its keys and kubeconfigs, a part of the control plane.
func (m *master) finish(ctx context.Context, out io.Writer) error {
	// An earlier try may have left one that waits for what has not come.
	if err := endNode(ctx, m.layout, m.steps); err != nil {
		return err
	}
	began := time.Now()
	if err := m.entering(ctx, m.startWith); err != nil {
		return err
	}
	m.steps.Done(began, "this machine's part of the control plane runs, and node %q is known to it", m.identity.NodeName)
	if err := m.markOwn(ctx); err != nil {
		return err
	}
	if err := m.joined(); err != nil {
		return err
	}
	if err := m.enter(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nThis machine is a further master of the cluster at %s.\n", m.server())
	return nil
}

// joined keeps that there is nothing left to be done of joining.
func (m *master) joined() error {
	m.joining = false
	return m.keep()
}

// entering makes this machine's etcd a member, if it is none yet, and goes on with then
// while the others are reached.
func (m *master) entering(ctx context.Context, then func(ctx context.Context, others *members.Cluster) error) error {
	others, err := m.etcdCluster(ctx)
	if err != nil {
		return err
	}
	defer others.Close()
	if err := m.enterEtcd(ctx, others); err != nil {
		return err
	}
	return then(ctx, others)
}

// markOwn marks the node as a master by this machine's own API server.
func (m *master) markOwn(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags(m.own(), m.conf("admin"))
	if err != nil {
		return fmt.Errorf("reading the administrator's kubeconfig: %w", err)
	}
	clients, err := client.New(client.Config{REST: config})
	if err != nil {
		return err
	}
	return m.mark(ctx, clients)
}

// become settles what the master is like by what the cluster says.
func (o *joinOptions) become(ctx context.Context, m *master, kube kubernetes.Interface) error {
	cluster, kubelet, err := clusterLike(ctx, kube)
	if err != nil {
		return err
	}
	if cluster.ControlPlaneEndpoint == "" {
		return command.PreflightError(errors.New("unable to add a new control plane instance to a cluster that doesn't have a stable controlPlaneEndpoint address: " +
			"run `hyperkube init` with --control-plane-endpoint on its master"))
	}
	if m.settings.Patches, err = absolute(o.patches); err != nil {
		return err
	}
	m.settings.ofCluster(cluster)
	m.settings.Advertise, m.settings.Port, m.settings.Taints, m.settings.Waits = o.advertise, o.port, o.node.Taints, o.waits
	m.identity = identity.Cluster{
		NodeName: o.node.Name, PodCIDRs: m.settings.PodCIDRs, ServiceCIDRs: m.settings.ServiceCIDRs,
		Domain: kubelet.ClusterDomain, Endpoint: m.settings.Endpoint,
	}
	if len(kubelet.ClusterDNS) > 0 {
		m.identity.DNSAddress = kubelet.ClusterDNS[0]
	}
	if err := m.decideAddress(); err != nil {
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
	kept, err := loadFurtherMaster(m.layout)
	if err == nil && kept != nil {
		m.etcdMembers = kept.EtcdMembers // an earlier try came that far
	}
	return err
}

// sharedFiles writes the keys that all masters share, or looks whether somebody
// has brought them.
func (o *joinOptions) sharedFiles(ctx context.Context, m *master, c *trust.Cluster, kube kubernetes.Interface) error {
	if o.certificateKey == "" {
		for _, name := range trust.SharedFiles() {
			if path := filepath.Join(m.pkiDir(), name); !layout.Exists(path) {
				return command.PreflightError(fmt.Errorf("%s is missing: give --certificate-key, which `hyperkube init --upload-certs` prints on a master", path))
			}
		}
		return nil
	}
	key, err := trust.ParseCertificateKey(o.certificateKey)
	if err != nil {
		return command.ConfigError(fmt.Errorf("--certificate-key: %w", err))
	}
	secret, err := kube.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, trust.CertsSecret, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("downloading certificates, which a master uploads with `hyperkube init --upload-certs` and which live two hours: %w", err)
	}
	files, err := trust.OpenCerts(secret, key)
	if err != nil {
		return err
	}
	if !bytes.Contains(c.CA, bytes.TrimSpace(files["ca.crt"])) {
		return errors.New("the certificates that were uploaded are of another cluster")
	}
	if err := os.MkdirAll(filepath.Join(m.pkiDir(), "etcd"), 0o755); err != nil {
		return fmt.Errorf("making the directory of certificates: %w", err)
	}
	var write []atomicfile.File
	for _, name := range trust.SharedFiles() {
		mode := os.FileMode(0o600)
		if strings.HasSuffix(name, ".crt") {
			mode = 0o644
		}
		write = append(write, atomicfile.File{Path: filepath.Join(m.pkiDir(), name), Data: files[name], Mode: mode})
	}
	if err := atomicfile.Write(write...); err != nil {
		return fmt.Errorf("keeping certificates: %w", err)
	}
	return nil
}

// furtherKubeconfigs are those of a further master besides the kubelet's.
var furtherKubeconfigs = []string{"admin", "controller-manager", "scheduler"}

// startKeys makes the master's own keys, and keeps what says that this machine
// has joined before anything else follows from it, so that reset knows.
func (m *master) startKeys() (*node.Options, error) {
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
	return options, m.keep()
}

// etcdURL is where this machine's member is reached by clients or members.
func (m *master) etcdURL(port int) string {
	return "https://" + netip.AddrPortFrom(m.address, uint16(port)).String()
}

// etcdCluster reaches the members that there are: they are named by the pods
// of other masters.
func (m *master) etcdCluster(ctx context.Context) (*members.Cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", m.conf("admin"))
	if err != nil {
		return nil, fmt.Errorf("reading the administrator's kubeconfig: %w", err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	urls, err := etcdURLs(ctx, kube, true)
	if err != nil {
		return nil, err
	}
	return members.Dial(urls, etcdDialer(m.pkiDir()), slog.Default())
}

// The static pods of etcd, and what tells where each one's clients reach it, as
// kubeadm has them.
const (
	etcdPods          = "component=etcd,tier=control-plane"
	etcdURLAnnotation = "kubeadm.kubernetes.io/etcd.advertise-client-urls"
)

// etcdURLs are where clients reach the members that the pods of masters name.
// A master may have joined before its pods are shown: wait gives them a little time.
func etcdURLs(ctx context.Context, kube kubernetes.Interface, wait bool) ([]string, error) {
	pods, err := kube.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: etcdPods})
	if err != nil {
		return nil, fmt.Errorf("looking for the members of etcd: %w", err)
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
		return nil, errors.New("no pod of the cluster says where etcd is: only clusters whose masters run etcd can have further ones")
	}
	return urls, nil
}

// etcdPodWithin is how long the first master's kubelet has to show the pod of
// etcd: it can run before the API has heard of it.
const etcdPodWithin = 10 // seconds

// firstEtcdURL waits a little for a pod that names a member, and returns nothing if
// there is none.
func firstEtcdURL(ctx context.Context, kube kubernetes.Interface, after string) ([]string, error) {
	limit := int64(etcdPodWithin)
	w, err := kube.CoreV1().Pods(metav1.NamespaceSystem).Watch(ctx, metav1.ListOptions{
		LabelSelector: etcdPods, ResourceVersion: after, TimeoutSeconds: &limit,
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for a member of etcd: %w", err)
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if pod, ok := event.Object.(*corev1.Pod); ok && pod.Annotations[etcdURLAnnotation] != "" {
			return []string{pod.Annotations[etcdURLAnnotation]}, nil
		}
	}
	return nil, ctx.Err()
}

func etcdDialer(pkiDir string) members.Dialer {
	return func(urls []string) (*clientv3.Client, error) {
		base := filepath.Join(pkiDir, "etcd", "healthcheck-client")
		return etcd.Dial(etcd.DialConfig{
			Servers: urls, CAFile: filepath.Join(pkiDir, "etcd", "ca.crt"), CertFile: base + ".crt", KeyFile: base + ".key",
		})
	}
}

// enterEtcd makes this machine's etcd a member without a vote, unless an
// earlier try has.
func (m *master) enterEtcd(ctx context.Context, others *members.Cluster) error {
	if m.etcdMembers != "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, m.settings.Waits.etcd())
	defer cancel()
	var err error
	if m.etcdMembers, err = others.AddLearner(ctx, m.identity.NodeName, m.etcdURL(layout.PortEtcdPeer)); err != nil {
		return err
	}
	return m.keep()
}

// startWith starts the node with etcd alone, and the rest of the control plane
// as soon as that has a vote: a member without answers nobody's questions.
func (m *master) startWith(ctx context.Context, others *members.Cluster) error {
	if err := m.staticPods("etcd"); err != nil {
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
		m.steps.Done(began, "etcd has this machine as a member")
		return m.staticPods(manifests.Components()...)
	})
	return group.Wait()
}
