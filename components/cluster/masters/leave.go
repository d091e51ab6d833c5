package masters

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

	"hyperkube/components/cluster/identity"
	"hyperkube/components/cluster/members"
	"hyperkube/internal/layout"
)

// leaveBound is how long the other masters have to agree that this one leaves.
const leaveBound = 10 * time.Second

// Leave takes the member of etcd that is on this machine out of the
// cluster, if there are others, while it still runs: else they would count it
// among those that have to agree. That it cannot is told and stops nobody from
// taking the rest away.
func Leave(ctx context.Context, out io.Writer, l layout.Node) {
	shared, err := hasOtherMasters(l)
	if err == nil && !shared {
		return
	}
	var left bool
	if err == nil {
		left, err = leave(ctx, l)
	}
	switch {
	case err != nil:
		fmt.Fprintf(out, "this machine is still a member of the cluster's etcd: remove it on another master with etcdctl member remove (%v)\n", err)
	case left:
		fmt.Fprintln(out, "this machine is no member of the cluster's etcd any more")
	}
}

// Shares tells whether this machine may be a master beside others.
func Shares(l layout.Node) bool {
	shared, err := hasOtherMasters(l)
	return shared || err != nil
}

// hasOtherMasters tells whether the control plane of which this machine is a
// part may have others.
func hasOtherMasters(l layout.Node) (bool, error) {
	if !layout.Exists(etcdManifest(l)) {
		return false, nil
	}
	if layout.Exists(furtherMasterFile(l)) {
		return true, nil
	}
	id, _, err := identity.Load(l)
	return id.Endpoint != "", err
}

func etcdManifest(l layout.Node) string { return filepath.Join(l.StaticPods(), "etcd.yaml") }

func leave(ctx context.Context, l layout.Node) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, leaveBound)
	defer cancel()
	client, peer, err := etcdOf(etcdManifest(l))
	if err != nil {
		return false, err
	}
	urls, err := otherEtcdURLs(ctx, l, client)
	if err != nil || len(urls) == 0 {
		return false, err
	}
	others, err := members.Dial(urls, etcdDialer(filepath.Join(l.Etc, "pki")), slog.Default())
	if err != nil {
		return false, err
	}
	defer others.Close()
	return others.Remove(ctx, peer)
}

// otherEtcdURLs are where clients reach the other members. This machine's own
// knows, as long as it runs, else the API does.
func otherEtcdURLs(ctx context.Context, l layout.Node, own string) ([]string, error) {
	dial := etcdDialer(filepath.Join(l.Etc, "pki"))
	ask := func() ([]string, error) {
		asking, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		c, err := members.Dial([]string{own}, dial, slog.Default())
		if err != nil {
			return nil, err
		}
		defer c.Close()
		return c.URLs(asking)
	}
	urls, err := ask()
	if err != nil {
		var byAPI error
		if urls, byAPI = etcdURLsByAPI(ctx, filepath.Join(l.Etc, "admin.conf")); byAPI != nil {
			return nil, errors.Join(err, byAPI)
		}
	}
	return slices.DeleteFunc(urls, func(url string) bool { return url == own }), nil
}

func etcdURLsByAPI(ctx context.Context, kubeconfig string) ([]string, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the administrator's kubeconfig: %w", err)
	}
	config.Timeout = 3 * time.Second
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return etcdURLs(ctx, kube, false)
}

// etcdOf reads from the manifest of a static pod where its etcd is reached, by
// clients and by other members.
func etcdOf(path string) (client, peer string, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", "", fmt.Errorf("reading the manifest of etcd: %w", err)
	}
	var pod corev1.Pod
	if err := yaml.Unmarshal(data, &pod); err != nil {
		return "", "", fmt.Errorf("reading the manifest of etcd: %w", err)
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
		return "", "", fmt.Errorf("%s does not say where etcd is", path)
	}
	return client, peer, nil
}
