package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/testing/testport"
)

// servers are the processes of an etcd and an API server.
type servers struct {
	binary, dir string
	pki         *pki.Set
	etcdURL     string
	port        string
	etcd, api   *exec.Cmd
	release     func() // releases the ports
	// store is the client of etcd; rest and kube are the configuration and the client of the API
	// server.
	store *clientv3.Client
	rest  *rest.Config
	kube  kubernetes.Interface
}

// newServers starts both servers and waits until the API server is ready. The caller must close the result.
func newServers(ctx context.Context, binary string) (s *servers, err error) {
	dir, err := os.MkdirTemp("", "hyperkube-scale-")
	if err != nil {
		return nil, err
	}
	s = &servers{binary: binary, dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	loopback := net.ParseIP("127.0.0.1")
	s.pki, err = pki.Ensure(filepath.Join(dir, "pki"), pki.Config{
		NodeName: "scale", NodeAddresses: []net.IP{loopback}, ServiceAddresses: []net.IP{net.ParseIP("10.96.0.1")},
	})
	if err != nil {
		return s, err
	}
	ports, release, err := testport.ClaimAll(4)
	if err != nil {
		return s, err
	}
	s.release = release
	s.etcdURL, s.port = "https://127.0.0.1:"+ports[0], ports[2]
	if s.etcd, err = s.start("etcd", "--data-dir="+filepath.Join(dir, "etcd"), "--name=scale",
		"--listen-client-urls="+s.etcdURL, "--listen-client-http-urls=https://127.0.0.1:"+ports[3], "--listen-peer-urls=https://127.0.0.1:"+ports[1],
		"--cert-file="+s.pki.EtcdServer.CertFile, "--key-file="+s.pki.EtcdServer.KeyFile,
		"--trusted-ca-file="+s.pki.EtcdCA.CertFile, "--client-cert-auth",
		"--peer-cert-file="+s.pki.EtcdPeer.CertFile, "--peer-key-file="+s.pki.EtcdPeer.KeyFile,
		"--peer-trusted-ca-file="+s.pki.EtcdCA.CertFile, "--peer-client-cert-auth"); err != nil {
		return s, err
	}
	if s.store, err = etcdClient(s.etcdURL, s.pki); err != nil {
		return s, err
	}
	admin, err := s.pki.CA.NewPair(pki.Client("admin", "system:masters"))
	if err != nil {
		return s, err
	}
	s.rest = &rest.Config{
		Host: "https://127.0.0.1:" + s.port, QPS: -1,
		ContentConfig:   rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf", AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json"},
		TLSClientConfig: rest.TLSClientConfig{CAData: s.pki.CA.CertPEM, CertData: admin.CertPEM, KeyData: admin.KeyPEM},
	}
	if s.kube, err = kubernetes.NewForConfig(s.rest); err != nil {
		return s, err
	}
	return s, s.startAPI(ctx)
}

// start starts a component of hyperkube. Its output is appended to a log file.
func (s *servers) start(name string, args ...string) (*exec.Cmd, error) {
	log, err := os.OpenFile(filepath.Join(s.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(s.binary, append([]string{name}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	return cmd, cmd.Start()
}

// startAPI starts the API server and waits until it is ready.
func (s *servers) startAPI(ctx context.Context) (err error) {
	s.api, err = s.start("kube-apiserver", "--etcd-servers="+s.etcdURL, "--etcd-cafile="+s.pki.EtcdCA.CertFile,
		"--etcd-certfile="+s.pki.APIServerEtcdClient.CertFile, "--etcd-keyfile="+s.pki.APIServerEtcdClient.KeyFile,
		"--bind-address=127.0.0.1", "--secure-port="+s.port, "--service-cluster-ip-range=10.96.0.0/16",
		"--tls-cert-file="+s.pki.APIServer.CertFile, "--tls-private-key-file="+s.pki.APIServer.KeyFile,
		"--client-ca-file="+s.pki.CA.CertFile,
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+s.pki.ServiceAccountPubFile, "--service-account-signing-key-file="+s.pki.ServiceAccountKeyFile)
	if err != nil {
		return err
	}
	return waitReady(ctx, s.kube)
}

// waitReady waits until /readyz succeeds. It returns an error after a minute.
func waitReady(ctx context.Context, kube kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := kube.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("waiting for the API server to become ready: %w", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// stopAPI stops the API server.
func (s *servers) stopAPI() error {
	err := end(s.api)
	s.api = nil
	return err
}

// end terminates a process and waits for its end. It does nothing if the process was not started.
func end(cmd *exec.Cmd) error {
	if cmd == nil || cmd.Process == nil {
		return nil
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return cmd.Wait()
}

// close stops both servers and deletes their data.
func (s *servers) close() error {
	var err error
	if s.store != nil {
		err = s.store.Close()
	}
	if s.release != nil {
		defer s.release()
	}
	return errors.Join(err, end(s.api), end(s.etcd), os.RemoveAll(s.dir))
}

// etcdClient returns a client of etcd at url with the API server's certificate.
func etcdClient(url string, keys *pki.Set) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: []string{url}, DialTimeout: 20 * time.Second,
		TLS: &tls.Config{RootCAs: keys.EtcdCA.Pool(), Certificates: []tls.Certificate{keys.APIServerEtcdClient.TLS()}, MinVersion: tls.VersionTLS12},
	})
}

// samplePod returns a pod with a stored size of 2 KB. Copies of it get another name, node and UID
// of the same length.
func samplePod() *corev1.Pod {
	env := make([]corev1.EnvVar, 8)
	for i := range env {
		env[i] = corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", i), Value: strings.Repeat("v", 20)}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: sampleName, Namespace: namespace, Labels: map[string]string{"app": "scale", "tier": "web"},
			Annotations: map[string]string{"example.com/note": strings.Repeat("a", 200)},
		},
		Spec: corev1.PodSpec{
			SchedulerName: "none", NodeName: sampleNode,
			Containers: []corev1.Container{{
				Name: "main", Image: "registry.k8s.io/pause:3.10", Env: env, Ports: []corev1.ContainerPort{{ContainerPort: 80}},
				EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}},
			}},
		},
	}
}

const (
	namespace  = "scale"
	sampleName = "pod-000000"
	sampleNode = "node-0000"
	// perNode is the number of pods per node.
	perNode = 100
	// perTxn is the number of pods per transaction, writers the number of concurrent transactions.
	perTxn, writers = 100, 32
)

// fill writes n pods to etcd while the API server is stopped, and returns the total size of their
// values.
func (s *servers) fill(ctx context.Context, n int) (int, error) {
	if err := makeSample(ctx, s.kube, samplePod()); err != nil {
		return 0, err
	}
	if err := s.stopAPI(); err != nil {
		return 0, err
	}
	return multiply(ctx, s.store, n, perTxn)
}

// makeSample creates the namespace, its default ServiceAccount and the pod in the API server.
func makeSample(ctx context.Context, kube kubernetes.Interface, pod *corev1.Pod) error {
	core := kube.CoreV1()
	if _, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := core.ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{}); err != nil {
		if _, err := core.ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err
		}
	}
	_, err := core.Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// multiply writes copies of the sample to etcd, up to n pods, and returns the total size of their values. The pods of
// one transaction are one entry in etcd's log; etcd keeps thousands of entries in memory.
func multiply(ctx context.Context, store *clientv3.Client, n, perTxn int) (int, error) {
	prefix := "/registry/pods/" + namespace + "/"
	sample, err := store.Get(ctx, prefix+sampleName)
	if err != nil {
		return 0, err
	}
	if len(sample.Kvs) != 1 {
		return 0, errors.New("the sample is not in etcd")
	}
	value := sample.Kvs[0].Value
	at := bytes.Index(value, []byte("\x2a\x24")) // field 5 of the metadata, 36 bytes
	if at < 0 {
		return 0, errors.New("the sample has no UID")
	}
	uid := bytes.Clone(value[at+2 : at+38])
	put := func(i int) clientv3.Op {
		name := fmt.Sprintf("pod-%06d", i)
		v := bytes.ReplaceAll(value, []byte(sampleName), []byte(name))
		v = bytes.ReplaceAll(v, []byte(sampleNode), fmt.Appendf(nil, "node-%04d", i/perNode))
		v = bytes.ReplaceAll(v, uid, fmt.Appendf(nil, "00000000-0000-0000-0000-%012d", i))
		return clientv3.OpPut(prefix+name, string(v))
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for from := 1; from < n; from += perTxn {
		group.Go(func() error {
			var ops []clientv3.Op
			for i := from; i < min(from+perTxn, n); i++ {
				ops = append(ops, put(i))
			}
			_, err := store.Txn(ctx).Then(ops...).Commit()
			return err
		})
	}
	return len(value) * n, group.Wait()
}
