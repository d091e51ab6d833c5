// Package connect proxies requests to kubelets, pods and services: logs, exec, attach, port-forward
// and proxy.
package connect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"hyperkube/components/apiserver/registry"
	"hyperkube/components/apiserver/rest"
	"hyperkube/internal/credentials/pki"
)

// KubeletConfig configures connections to kubelets: the client certificate, the CA and the
// preferred addresses of nodes.
type KubeletConfig struct {
	// ClientCertFile and ClientKeyFile are the client certificate for kubelets. Empty means none.
	// They are reloaded when they change.
	ClientCertFile, ClientKeyFile string
	// CAFile verifies the serving certificates of kubelets. If it is empty, they are not verified,
	// as in upstream.
	CAFile string
	// AddressTypes are the node address types in order of preference. Nil means Hostname,
	// InternalDNS, InternalIP, ExternalDNS, ExternalIP.
	AddressTypes []string
	// Dial connects to kubelets. Nil connects to global unicast addresses only.
	Dial DialFunc
}

var defaultAddressTypes = []string{"Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"}

// kubelets looks up nodes and pods, and contains the transports to kubelets and pods. It is safe
// for concurrent use.
type kubelets struct {
	registry *registry.Registry
	types    []string
	// verified connects to kubelets. It verifies their certificates if a CA is configured.
	verified http.RoundTripper
	// insecure connects to kubelets without verifying their certificates, for clients that request
	// that.
	insecure http.RoundTripper
	// podTransport connects to pods and does not verify certificates, because pods have no trusted ones.
	podTransport http.RoundTripper
}

// newKubelets returns the connections to the kubelets of the nodes in reg. It returns an error if a file of cfg
// cannot be read. Without a CA file, the certificates of kubelets are not verified.
func newKubelets(reg *registry.Registry, cfg KubeletConfig) (*kubelets, error) {
	k := &kubelets{registry: reg, types: cfg.AddressTypes}
	if len(k.types) == 0 {
		k.types = defaultAddressTypes
	}
	base := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.ClientCertFile != "" {
		own := &pki.Files{Context: "client certificate for kubelets", CertFile: cfg.ClientCertFile, KeyFile: cfg.ClientKeyFile}
		if _, err := own.Certificate(); err != nil {
			return nil, err
		}
		base.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own.Certificate() }
	}
	blind := base.Clone()
	blind.InsecureSkipVerify = true //nolint:gosec // only on request or without a CA
	if cfg.CAFile == "" {
		base = blind
	} else {
		data, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading kubelet CA: %w", err)
		}
		base.RootCAs = x509.NewCertPool()
		if !base.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("reading kubelet CA: no certificates in %s", cfg.CAFile)
		}
	}
	dial := cfg.Dial
	if dial == nil {
		dial = dialProxyable
	}
	k.verified, k.insecure = transport(base, dial), transport(blind, dial)
	k.podTransport = transport(&tls.Config{InsecureSkipVerify: true}, dialProxyable) //nolint:gosec // pods have no identity to verify
	return k, nil
}

// transport returns an HTTP/1.1 transport to kubelets or pods. Upgrades of connections require
// HTTP/1.1.
func transport(cfg *tls.Config, dial DialFunc) *http.Transport {
	return &http.Transport{
		TLSClientConfig:     cfg,
		DialContext:         dial,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 5,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true,
		// Upgrades require HTTP/1.1.
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
}

// kubeletURL returns the https URL of the kubelet on the node with the name, without a path. The port is that in the
// Node's status, by default 10250. It returns an error if the node does not exist or has no address of the configured
// types.
func (k *kubelets) kubeletURL(ctx context.Context, name string) (*url.URL, error) {
	obj, err := k.get(ctx, "nodes", "", name)
	if err != nil {
		return nil, err
	}
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil, fmt.Errorf("node %s is a %T", name, obj)
	}
	port := int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	if port == 0 {
		port = 10250
	}
	host, err := k.address(node)
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: "https", Host: net.JoinHostPort(host, strconv.Itoa(port))}, nil
}

// address returns the node's address of the first configured type that the node has, or an error if it has none.
func (k *kubelets) address(node *corev1.Node) (string, error) {
	for _, t := range k.types {
		for _, a := range node.Status.Addresses {
			if string(a.Type) == t {
				return a.Address, nil
			}
		}
	}
	return "", fmt.Errorf("no preferred addresses found; known addresses: %v", node.Status.Addresses)
}

// get returns the latest version of an object of the core group, after all completed writes. The object is shared.
// The error is a Status error, such as NotFound, if the object cannot be read from the store.
func (k *kubelets) get(ctx context.Context, resource, namespace, name string) (any, error) {
	res := k.registry.Lookup(corev1.SchemeGroupVersion.WithResource(resource))
	if res == nil {
		return nil, fmt.Errorf("%s are not served", resource)
	}
	entry, err := res.Collection.Get(ctx, res.Key(namespace, name), -1)
	if err != nil {
		return nil, rest.StoreError(res, name, err)
	}
	return res.Read(entry)
}

// pod returns the latest version of a pod, after all completed writes. It returns an API error if the pod does not
// exist.
func (k *kubelets) pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	obj, err := k.get(ctx, "pods", namespace, name)
	if err != nil {
		return nil, err
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("pod %s is a %T", name, obj)
	}
	return pod, nil
}

// container returns the name of the container to which a request refers. It is wanted, if the pod has a container
// with this name. If wanted is "", it is the only container, or the one in the annotation
// kubectl.kubernetes.io/default-container. It returns a BadRequest error if the name is wrong or ambiguous.
func container(wanted string, pod *corev1.Pod) (string, error) {
	if wanted != "" {
		if slices.Contains(containerNames(pod), wanted) {
			return wanted, nil
		}
		return "", badRequest("container %s is not valid for pod %s", wanted, pod.Name)
	}
	switch len(pod.Spec.Containers) {
	case 1:
		return pod.Spec.Containers[0].Name, nil
	case 0:
		return "", badRequest("a container name must be specified for pod %s", pod.Name)
	}
	if name := pod.Annotations["kubectl.kubernetes.io/default-container"]; name != "" {
		for _, c := range pod.Spec.Containers {
			if c.Name == name {
				return name, nil
			}
		}
	}
	names := make([]string, 0, len(pod.Spec.Containers))
	for _, c := range pod.Spec.Containers {
		names = append(names, c.Name)
	}
	msg := fmt.Sprintf("a container name must be specified for pod %s, choose one of: [%s]", pod.Name, strings.Join(names, " "))
	if n := len(pod.Spec.InitContainers); n > 0 {
		init := make([]string, 0, n)
		for _, c := range pod.Spec.InitContainers {
			init = append(init, c.Name)
		}
		msg += fmt.Sprintf(" or one of the init containers: [%s]", strings.Join(init, " "))
	}
	if n := len(pod.Spec.EphemeralContainers); n > 0 {
		ephemeral := make([]string, 0, n)
		for _, c := range pod.Spec.EphemeralContainers {
			ephemeral = append(ephemeral, c.Name)
		}
		msg += fmt.Sprintf(" or one of the ephemeral containers: [%s]", strings.Join(ephemeral, " "))
	}
	return "", badRequest("%s", msg)
}

// containerNames returns the names of all containers of a pod: normal, init and ephemeral ones, in this order.
func containerNames(pod *corev1.Pod) []string {
	var names []string
	for _, c := range pod.Spec.Containers {
		names = append(names, c.Name)
	}
	for _, c := range pod.Spec.InitContainers {
		names = append(names, c.Name)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		names = append(names, c.Name)
	}
	return names
}

var (
	pods     = corev1.SchemeGroupVersion.WithResource("pods")
	services = corev1.SchemeGroupVersion.WithResource("services")
	nodes    = corev1.SchemeGroupVersion.WithResource("nodes")
)
