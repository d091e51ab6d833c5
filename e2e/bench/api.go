package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/internal/credentials/kubeconfig"
	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/testing/testport"
)

// apiBench measures the API server alone. etcd, the client and the API server are three processes
// that communicate over loopback with TLS. It does not change the machine.
type apiBench struct {
	binary string
	// peer is another API server binary to measure, with this program's etcd; empty: measure this
	// program's.
	peer string
	// slice is the duration of one measurement of an operation. Each operation is measured rounds
	// times; the output contains the median and the minimum.
	slice  time.Duration
	rounds int
	// only are the names of the operations to measure; empty: all.
	only []string
	// profiles is the directory for a CPU profile of each operation and for memory profiles; empty:
	// no profiles.
	profiles string

	dir    string
	server *exec.Cmd
	config *rest.Config
}

// run starts etcd and the API server, measures the operations, and stops both and deletes their data.
func (a *apiBench) run(ctx context.Context) (err error) {
	if a.dir, err = os.MkdirTemp("", "hyperkube-bench-api-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(a.dir)) }()
	set, err := pki.Ensure(filepath.Join(a.dir, "pki"), pki.Config{
		NodeName: "bench", NodeAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ServiceAddresses: []net.IP{net.IPv4(10, 96, 0, 1)},
	})
	if err != nil {
		return err
	}
	ports, release, err := testport.ClaimAll(4)
	if err != nil {
		return err
	}
	defer release()
	etcdURL, peerURL := "https://127.0.0.1:"+ports[0], "https://127.0.0.1:"+ports[1]
	etcd, err := a.start("etcd", a.binary, "etcd", "--data-dir="+filepath.Join(a.dir, "etcd"), "--name=bench",
		"--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL, "--listen-client-http-urls=https://127.0.0.1:"+ports[3],
		"--listen-peer-urls="+peerURL, "--initial-advertise-peer-urls="+peerURL, "--initial-cluster=bench="+peerURL,
		"--cert-file="+set.EtcdServer.CertFile, "--key-file="+set.EtcdServer.KeyFile,
		"--trusted-ca-file="+set.EtcdCA.CertFile, "--client-cert-auth",
		"--peer-cert-file="+set.EtcdPeer.CertFile, "--peer-key-file="+set.EtcdPeer.KeyFile,
		"--peer-trusted-ca-file="+set.EtcdCA.CertFile, "--peer-client-cert-auth")
	if err != nil {
		return err
	}
	defer stop(etcd)
	server := []string{a.binary, "kube-apiserver"}
	if a.peer != "" {
		server = []string{a.peer}
	}
	a.server, err = a.start("kube-apiserver", append(server, "--etcd-servers="+etcdURL, "--etcd-cafile="+set.EtcdCA.CertFile,
		"--etcd-certfile="+set.APIServerEtcdClient.CertFile, "--etcd-keyfile="+set.APIServerEtcdClient.KeyFile,
		// Upstream's API server does not accept a loopback address as advertise address. Nothing
		// connects to this address.
		"--bind-address=127.0.0.1", "--advertise-address=192.0.2.1", "--secure-port="+ports[2],
		"--service-cluster-ip-range=10.96.0.0/16",
		"--tls-cert-file="+set.APIServer.CertFile, "--tls-private-key-file="+set.APIServer.KeyFile,
		"--client-ca-file="+set.CA.CertFile, "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+set.ServiceAccountPubFile, "--service-account-signing-key-file="+set.ServiceAccountKeyFile)...)
	if err != nil {
		return err
	}
	defer stop(a.server)
	if err := a.connect(ctx, set, "https://127.0.0.1:"+ports[2]); err != nil {
		return err
	}
	return a.measure(ctx)
}

// connect creates an administrator's client configuration, and waits until the API server is ready. It returns an error
// if that takes longer than two minutes.
func (a *apiBench) connect(ctx context.Context, set *pki.Set, url string) error {
	admin, err := set.CA.NewPair(pki.Client("bench", "system:masters"))
	if err != nil {
		return err
	}
	a.config, err = clientcmd.NewDefaultClientConfig(*kubeconfig.New(kubeconfig.Config{
		Server: url, CA: set.CA.CertPEM, Cert: admin.CertPEM, Key: admin.KeyPEM,
	}), nil).ClientConfig()
	if err != nil {
		return err
	}
	a.config.QPS = -1
	kube, err := kubernetes.NewForConfig(a.config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		_, err := kube.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the API server is not ready: %w", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// start starts a component. Its output is written to a log file. The kernel kills it when this process terminates.
func (a *apiBench) start(name string, command ...string) (*exec.Cmd, error) {
	log, err := os.Create(filepath.Join(a.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, cmd.Start()
}

// stop kills a component and waits for its end.
func stop(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // a clean stop is not needed because the data is deleted
	_ = cmd.Wait()
}

// used returns the CPU time that the API server has used so far, or zero if it cannot be read.
func (a *apiBench) used() time.Duration {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", a.server.Process.Pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// memory returns the anonymous memory of the API server in MiB, or zero if it cannot be read.
func (a *apiBench) memory() int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.server.Process.Pid))
	for line := range strings.SplitSeq(string(status), "\n") {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "RssAnon:" {
			kb, _ := strconv.Atoi(f[1])
			return kb >> 10
		}
	}
	return 0
}

// profile starts a CPU profile of the API server for the duration of an operation, if a directory for profiles is
// configured. The returned function waits for its end.
func (a *apiBench) profile(ctx context.Context, name string) func() error {
	done := make(chan error, 1)
	go func() {
		length := max(1, int((a.slice*time.Duration(a.rounds)-100*time.Millisecond)/time.Second))
		done <- a.record(ctx, fmt.Sprintf("profile?seconds=%d", length), name)
	}()
	return func() error { return <-done }
}

// record writes a profile from /debug/pprof/ to a file in the profiles directory, if it is
// configured.
func (a *apiBench) record(ctx context.Context, what, name string) error {
	if a.profiles == "" {
		return nil
	}
	client, err := rest.HTTPClientFor(rest.CopyConfig(a.config))
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.config.Host+"/debug/pprof/"+what, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	file, err := os.Create(filepath.Join(a.profiles, name+".pprof"))
	if err != nil {
		return err
	}
	_, err = io.Copy(file, resp.Body)
	return errors.Join(err, file.Close())
}
