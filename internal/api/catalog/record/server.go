package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	admission "k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// startTimeout is the time after which a server that is not ready has failed.
const startTimeout = time.Minute

// startServer starts upstream's kube-apiserver and etcd in this process. All admission plugins are
// disabled, because the tables record only the rules of kinds. args are additional flags of the
// kube-apiserver; log is the file for its log. startServer returns the configuration of an
// administrator's client and a client of the etcd. Both servers run until the process exits; the
// caller must call the returned function, which removes their files.
func startServer(ctx context.Context, args []string, log string) (*rest.Config, *clientv3.Client, func(), error) {
	dir, err := os.MkdirTemp("", "record-")
	if err != nil {
		return nil, nil, nil, err
	}
	remove := func() { _ = os.RemoveAll(dir) }
	config, etcd, err := startIn(ctx, dir, args, log)
	if err != nil {
		remove()
		return nil, nil, nil, err
	}
	return config, etcd, remove, nil
}

// startIn starts the servers of startServer with dir as the directory of their files. It returns
// once the kube-apiserver is ready.
func startIn(ctx context.Context, dir string, args []string, log string) (*rest.Config, *clientv3.Client, error) {
	etcdURL, err := startEtcd(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("starting etcd: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, nil, err
	}
	keyFile, tokens := filepath.Join(dir, "sa.key"), filepath.Join(dir, "tokens.csv")
	token := rand.Text()
	for name, text := range map[string]string{keyFile: string(keyPEM), tokens: token + ",admin,1,system:masters\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return nil, nil, err
		}
	}
	address, err := freeAddress()
	if err != nil {
		return nil, nil, err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, nil, err
	}
	logFile, err := os.Create(log)
	if err != nil {
		return nil, nil, err
	}
	stderr := os.Stderr
	os.Stderr = logFile // klog writes there
	cmd := app.NewAPIServerCommand()
	cmd.SetArgs(append([]string{
		"--etcd-servers=" + etcdURL,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
		"--secure-port=" + port, "--cert-dir=" + dir, "--token-auth-file=" + tokens,
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + keyFile, "--service-account-signing-key-file=" + keyFile,
		"--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112", "--authorization-mode=RBAC", "--allow-privileged=true",
		"--disable-admission-plugins=" + strings.Join(admission.AllOrderedPlugins, ","),
		// Objects of the tables must not affect the requests.
		"--enable-priority-and-fairness=false",
		"--runtime-config=api/all=true",
	}, args...))
	failed := make(chan error, 1)
	go func() { failed <- cmd.ExecuteContext(ctx) }()
	config := &rest.Config{
		Host: "https://" + address, BearerToken: token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(dir, "apiserver.crt")},
	}
	if err := waitReady(ctx, config, failed); err != nil {
		os.Stderr = stderr
		return nil, nil, fmt.Errorf("starting kube-apiserver: %w (see its log with -server-log)", err)
	}
	os.Stderr = stderr
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{etcdURL}})
	if err != nil {
		return nil, nil, fmt.Errorf("connecting to etcd: %w", err)
	}
	return config, etcd, nil
}

// startEtcd starts an etcd member with its data below dir, waits until it is ready, and returns its client URL. The
// member runs until the process ends.
func startEtcd(dir string) (string, error) {
	c := embed.NewConfig()
	c.Dir = filepath.Join(dir, "etcd")
	c.LogLevel = "error"
	c.UnsafeNoFsync = true
	for _, urls := range []*[]url.URL{&c.ListenClientUrls, &c.ListenPeerUrls} {
		address, err := freeAddress()
		if err != nil {
			return "", err
		}
		*urls = []url.URL{{Scheme: "http", Host: address}}
	}
	c.AdvertiseClientUrls, c.AdvertisePeerUrls = c.ListenClientUrls, c.ListenPeerUrls
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	member, err := embed.StartEtcd(c)
	if err != nil {
		return "", err
	}
	select {
	case <-member.Server.ReadyNotify():
	case err := <-member.Err():
		return "", err
	}
	return c.ListenClientUrls[0].String(), nil
}

// freeAddress returns a local address whose port is not in use.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String(), nil
}

// waitReady waits until the kube-apiserver in config responds to /readyz, for at most startTimeout.
// failed receives the error of a server that exits; waitReady then returns this error.
func waitReady(ctx context.Context, config *rest.Config, failed <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		select {
		case err := <-failed:
			return fmt.Errorf("exited: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w", last)
		case <-tick.C:
		}
		if _, last = os.Stat(config.CAFile); last != nil {
			continue
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			last = err // the certificate may not be complete yet
			continue
		}
		if _, last = client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); last == nil {
			return nil
		}
	}
}
