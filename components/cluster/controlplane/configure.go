package controlplane

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"

	"hyperkube/components/cluster/addons"
	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/joindiscovery"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/progress"
	"hyperkube/internal/base/version"
	"hyperkube/internal/client"
	"hyperkube/internal/host/layout"
	"hyperkube/manifests"
)

// configure applies the objects that other machines need for joining, uploads the certificates if that is enabled,
// marks the node as a control plane node and applies the add-ons. It first waits for the API server. It returns the
// bootstrap token for the join command.
func (m clusterSetup) configure(ctx context.Context) (joindiscovery.Token, error) {
	record, err := m.token()
	if err != nil {
		return joindiscovery.Token{}, command.ConfigError(err)
	}
	clients, err := m.clients(ctx)
	if err != nil {
		return record.Token, err
	}
	objects, err := m.objects(record)
	if err != nil {
		return record.Token, err
	}
	return record.Token, m.retryTransient(ctx, clients, func(ctx context.Context) error {
		if err := applyAll(ctx, clients, objects); err != nil {
			return err
		}
		if m.certificateKey != nil {
			if err := m.uploadCerts(ctx, clients); err != nil {
				return err
			}
		}
		if !m.settings.skips("mark-control-plane") {
			if err := m.mark(ctx, clients); err != nil {
				return err
			}
		}
		if m.settings.skips("addon") {
			return nil
		}
		return m.installAddons(ctx, clients)
	})
}

// clients returns clients of this machine's API server. It blocks until the API server is ready.
func (m clusterSetup) clients(ctx context.Context) (*client.Clients, error) {
	config, err := m.adminConfig()
	if err != nil {
		return nil, err
	}
	clients, err := client.New(client.Config{REST: config})
	if err != nil {
		return nil, err
	}
	return clients, m.waitForAPIServer(ctx, clients)
}

// applyAll applies objects with server-side apply, in order. It stops at the first error.
func applyAll(ctx context.Context, clients *client.Clients, objects []*unstructured.Unstructured) error {
	for _, obj := range objects {
		if err := addons.Apply(ctx, clients.Dynamic, obj); err != nil {
			return err
		}
	}
	return nil
}

// installAddons applies the add-ons according to the settings of the cluster.
func (m clusterSetup) installAddons(ctx context.Context, clients *client.Clients) error {
	settings, err := addons.Enable(ctx, clients.Kube, nil, m.identity.Addons)
	if err != nil {
		return err
	}
	return addons.NewReconciler(clients, manifests.Values{
		Image: version.Image(), DNSAddress: m.identity.DNSAddress, Domain: m.identity.Domain,
		NodeDNSDir: m.layout.NodeDNS(),
	}).ReconcileAll(ctx, settings)
}

// adminConfig returns the client configuration of the administrator for this machine's API server. It
// prefers super-admin.conf, which needs no RBAC binding; additional control plane nodes have only
// admin.conf.
func (m clusterSetup) adminConfig() (*rest.Config, error) {
	path := m.kubeconfigPath("super-admin")
	if !layout.Exists(path) {
		path = m.kubeconfigPath("admin")
	}
	config, err := clientcmd.BuildConfigFromFlags(m.localURL(), path)
	if err != nil {
		return nil, fmt.Errorf("reading administrator kubeconfig: %w", err)
	}
	return config, nil
}

// waitOptions returns the timeout of waits for the control plane, and how the waits report progress to the user.
func (m *controlPlaneNode) waitOptions() progress.Waiter {
	return progress.Waiter{
		FirstReport: progress.FirstReport, ReportInterval: progress.ReportInterval, Timeout: m.settings.Waits.controlPlane(),
		Report: func(text string) { m.steps.Send(progress.Step{Text: text, Waiting: true}) },
		Hint:   fmt.Sprintf("see the logs below %s and %s", m.layout.PodLogs, m.layout.Log(layout.MainProcess)),
	}
}

// waitForAPIServer blocks until the API server is ready. The API server is another process.
func (m clusterSetup) waitForAPIServer(ctx context.Context, clients *client.Clients) error {
	p := m.waitOptions()
	var last atomic.Pointer[error]
	await := func(ctx context.Context) error {
		return client.AwaitAPI(ctx, clients.Kube, func(err error) { last.Store(&err) })
	}
	return p.Wait(ctx, "the API server", func(ctx context.Context) string {
		if text := node.StaticPodProblems(ctx, m.layout); text != "" {
			return text
		}
		if err := last.Load(); err != nil {
			return (*err).Error()
		}
		return ""
	}, await)
}

// token returns the bootstrap token to store in the cluster, with its usages, groups and expiration: the configured
// token, or a new random one.
func (m clusterSetup) token() (*joindiscovery.Record, error) {
	r := &joindiscovery.Record{
		Token: joindiscovery.NewToken(), Usages: []string{joindiscovery.Signing, joindiscovery.Authentication}, Groups: []string{joindiscovery.NodeGroup},
		Description: "The default bootstrap token generated by 'hyperkube init'.",
	}
	if m.settings.TokenDescription != "" {
		r.Description = m.settings.TokenDescription
	}
	if m.settings.TokenUsages != nil {
		r.Usages = m.settings.TokenUsages
	}
	if m.settings.TokenGroups != nil {
		r.Groups = m.settings.TokenGroups
	}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if m.settings.Token != "" {
		var err error
		if r.Token, err = joindiscovery.ParseToken(m.settings.Token); err != nil {
			return nil, err
		}
	}
	if m.settings.TokenTTL > 0 {
		r.Expires = time.Now().Add(m.settings.TokenTTL)
	}
	return r, nil
}

// objects returns the API objects that joining machines need, in addition to those that every cluster has: the
// ConfigMaps of configObjects and the objects of joinObjects.
func (m clusterSetup) objects(token *joindiscovery.Record) ([]*unstructured.Unstructured, error) {
	config, err := m.configObjects()
	if err != nil {
		return nil, err
	}
	join, err := m.joinObjects(token)
	return append(config, join...), err
}

// configObjects returns the ConfigMaps with the cluster and kubelet configuration, which joining machines and kubeadm
// read.
func (m clusterSetup) configObjects() ([]*unstructured.Unstructured, error) {
	cluster, err := m.configMap(joindiscovery.ClusterConfig, "ClusterConfiguration", m.clusterConfiguration())
	if err != nil {
		return nil, err
	}
	kubelet, err := m.configMap(joindiscovery.KubeletConfig, "kubelet", kubeletDefaults{
		TypeMeta:      metav1.TypeMeta{Kind: "KubeletConfiguration", APIVersion: "kubelet.config.k8s.io/v1beta1"},
		ClusterDNS:    []string{m.identity.DNSAddress},
		ClusterDomain: m.identity.Domain,
	})
	if err != nil {
		return nil, err
	}
	return toUnstructuredAll(cluster, kubelet)
}

// joinObjects returns the objects that let machines join with the token: the ConfigMap cluster-info, the Secret of the
// token, and RBAC roles and bindings.
func (m clusterSetup) joinObjects(token *joindiscovery.Record) ([]*unstructured.Unstructured, error) {
	info, err := joindiscovery.Cluster{Server: m.server(), CA: m.pki.CA.CertPEM}.Info()
	if err != nil {
		return nil, err
	}
	all := []runtime.Object{info, token.Secret()}
	for _, r := range joindiscovery.ClusterRoles() {
		all = append(all, r)
	}
	for _, b := range joindiscovery.ClusterBindings() {
		all = append(all, b)
	}
	roles, bindings := joindiscovery.Roles()
	for i := range roles {
		all = append(all, roles[i], bindings[i])
	}
	return toUnstructuredAll(all...)
}

// toUnstructuredAll converts objects to unstructured form.
func toUnstructuredAll(all ...runtime.Object) ([]*unstructured.Unstructured, error) {
	out := make([]*unstructured.Unstructured, len(all))
	for i, obj := range all {
		var err error
		if out[i], err = toUnstructured(obj); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// kubeletDefaults contains the fields of KubeletConfiguration that all kubelets of the cluster
// share. The published type is not used because it also encodes unset fields as zero values.
type kubeletDefaults struct {
	metav1.TypeMeta `json:",inline"`
	ClusterDNS      []string `json:"clusterDNS,omitempty"`
	ClusterDomain   string   `json:"clusterDomain,omitempty"`
}

// toUnstructured converts an object to unstructured form, so that it can be applied.
func toUnstructured(obj runtime.Object) (*unstructured.Unstructured, error) {
	kinds, _, err := scheme.Scheme.ObjectKinds(obj)
	if err != nil {
		return nil, fmt.Errorf("converting object: %w", err)
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, fmt.Errorf("converting object: %w", err)
	}
	out := &unstructured.Unstructured{Object: fields}
	out.SetGroupVersionKind(kinds[0])
	unstructured.RemoveNestedField(out.Object, "metadata", "creationTimestamp")
	return out, nil
}

// uploadCerts uploads the certificates and keys that all control plane nodes share, encrypted. The
// Secret is deleted together with a token that has no other use.
func (m clusterSetup) uploadCerts(ctx context.Context, clients *client.Clients) error {
	files := map[string][]byte{}
	for _, name := range joindiscovery.SharedFiles() {
		data, err := os.ReadFile(filepath.Join(m.pkiDir(), name))
		if err != nil {
			return fmt.Errorf("uploading certificates: %w", err)
		}
		files[name] = data
	}
	owner, err := clients.Kube.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, joindiscovery.CertsToken(time.Now()).Secret(), metav1.CreateOptions{FieldManager: addons.FieldManager})
	if err != nil {
		return fmt.Errorf("uploading certificates: %w", err)
	}
	secret, err := joindiscovery.SealCerts(files, *m.certificateKey, owner)
	if err != nil {
		return err
	}
	obj, err := toUnstructured(secret)
	if err != nil {
		return err
	}
	return addons.Apply(ctx, clients.Dynamic, obj)
}

// configMap returns a ConfigMap in kube-system that contains content as YAML under key.
func (m clusterSetup) configMap(name, key string, content any) (*corev1.ConfigMap, error) {
	text, err := yaml.Marshal(content)
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", key, err)
	}
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name},
		Data:       map[string]string{key: string(text)},
	}, nil
}

// mark adds the label and taints of a control plane node to this machine's Node. Taints are added only together with
// the label, so that a taint that a user removed is not added again.
func (m clusterSetup) mark(ctx context.Context, clients *client.Clients) error {
	nodes := clients.Kube.CoreV1().Nodes()
	err := retry.OnError(retry.DefaultBackoff, apierrors.IsConflict, func() error {
		node, err := nodes.Get(ctx, m.identity.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if _, marked := node.Labels[clusterconfig.ControlPlaneRole]; marked {
			return nil
		}
		node.Labels[clusterconfig.ControlPlaneRole] = ""
		node.Labels["node.kubernetes.io/exclude-from-external-load-balancers"] = ""
		taints, err := m.taints()
		if err != nil {
			return command.ConfigError(err)
		}
		node.Spec.Taints = append(node.Spec.Taints, taints...)
		_, err = nodes.Update(ctx, node, metav1.UpdateOptions{FieldManager: addons.FieldManager})
		return err
	})
	if err != nil {
		return fmt.Errorf("marking node %s as control plane: %w", m.identity.NodeName, err)
	}
	return nil
}
