package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/etcdmembers"
	"hyperkube/internal/host/layout"
)

// leaveTimeout is the timeout for the removal of the etcd member, to which the other members must
// agree.
const leaveTimeout = 10 * time.Second

// LeaveEtcd removes this machine's etcd member from the cluster if there are other members. It must run
// before etcd stops, because the other members would otherwise count a stopped member towards the
// quorum. Errors are printed and do not stop the reset.
func LeaveEtcd(ctx context.Context, out io.Writer, l layout.Node) {
	shared, err := hasOtherControlPlaneNodes(l)
	if err == nil && !shared {
		return
	}
	var left bool
	if err == nil {
		left, err = leaveEtcd(ctx, l)
	}
	switch {
	case err != nil:
		fmt.Fprintf(out, "warning: this machine is still an etcd member: remove it with 'etcdctl member remove' on another control plane node (%v)\n", err)
	case left:
		fmt.Fprintln(out, "removed this machine from the etcd cluster")
	}
}

// MayHavePeers reports whether this machine may be one of several control plane nodes.
func MayHavePeers(l layout.Node) bool {
	shared, err := hasOtherControlPlaneNodes(l)
	return shared || err != nil
}

// hasOtherControlPlaneNodes reports whether the control plane of this machine may have other nodes: if this machine
// has joined it, or if the cluster has an endpoint that several nodes can share. It returns false on a machine
// without etcd.
func hasOtherControlPlaneNodes(l layout.Node) (bool, error) {
	if !layout.Exists(etcdManifest(l)) {
		return false, nil
	}
	if layout.Exists(additionalNodeFile(l)) {
		return true, nil
	}
	id, _, err := clusterconfig.Load(l)
	return id.Endpoint != "", err
}

// etcdManifest returns the path of the static pod manifest of etcd.
func etcdManifest(l layout.Node) string { return filepath.Join(l.StaticPods(), "etcd.yaml") }

// leaveEtcd removes this machine's etcd member from the cluster, and reports whether it has. It returns false if there
// are no other members.
func leaveEtcd(ctx context.Context, l layout.Node) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	client, peer, err := manifestEtcdURLs(etcdManifest(l))
	if err != nil {
		return false, err
	}
	urls, err := otherEtcdURLs(ctx, l, client)
	if err != nil || len(urls) == 0 {
		return false, err
	}
	others, err := etcdmembers.Dial(urls, etcdDialer(filepath.Join(l.Etc, "pki")), slog.Default())
	if err != nil {
		return false, err
	}
	defer others.Close()
	return others.Remove(ctx, peer)
}

// otherEtcdURLs returns the client URLs of the other members. It queries the local member, or the
// API server if the local member does not run.
func otherEtcdURLs(ctx context.Context, l layout.Node, own string) ([]string, error) {
	dial := etcdDialer(filepath.Join(l.Etc, "pki"))
	listLocal := func() ([]string, error) {
		listCtx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		c, err := etcdmembers.Dial([]string{own}, dial, slog.Default())
		if err != nil {
			return nil, err
		}
		defer c.Close()
		return c.URLs(listCtx)
	}
	urls, err := listLocal()
	if err != nil {
		var apiErr error
		if urls, apiErr = etcdURLsFromAPI(ctx, filepath.Join(l.Etc, "admin.conf")); apiErr != nil {
			return nil, errors.Join(err, apiErr)
		}
	}
	return slices.DeleteFunc(urls, func(url string) bool { return url == own }), nil
}

// etcdURLsFromAPI returns the client URLs of all etcd members that have a pod, from the API server in a kubeconfig.
func etcdURLsFromAPI(ctx context.Context, kubeconfig string) ([]string, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading administrator kubeconfig: %w", err)
	}
	config.Timeout = 3 * time.Second
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return etcdURLs(ctx, kube, false)
}

// manifestEtcdURLs returns the client and peer URL of etcd from its static pod manifest.
func manifestEtcdURLs(path string) (client, peer string, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", "", fmt.Errorf("reading manifest of etcd: %w", err)
	}
	var pod corev1.Pod
	if err := yaml.Unmarshal(data, &pod); err != nil {
		return "", "", fmt.Errorf("reading manifest of etcd: %w", err)
	}
	for _, c := range pod.Spec.Containers {
		for _, arg := range slices.Concat(c.Command, c.Args) {
			if url, ok := strings.CutPrefix(arg, "--advertise-client-urls="); ok {
				client = url
			}
			if url, ok := strings.CutPrefix(arg, "--initial-advertise-peer-urls="); ok {
				peer = url
			}
		}
	}
	if client == "" || peer == "" {
		return "", "", fmt.Errorf("reading manifest %s: it has no URLs of etcd", path)
	}
	return client, peer, nil
}
