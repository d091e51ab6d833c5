package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/internal/testing/testimage"
)

// TestApart runs the components as separate processes, kills the API server, and finally runs
// kubelet and proxy as separate processes.
func TestApart(t *testing.T) {
	a := newApart(t)
	a.startControlPlane()
	a.startNode()
	a.ready()

	t.Run("runs", func(t *testing.T) { a.in(t).runs() })
	t.Run("leads", func(t *testing.T) { a.in(t).leads() })
	t.Run("reconnects", func(t *testing.T) { a.in(t).reconnects() })
	t.Run("kubelet and proxy", func(t *testing.T) { a.in(t).splitNode() })
	t.Run("unused images", func(t *testing.T) { a.in(t).collectsImages() })
	a.alive()
}

// patientLeaders are the flags with which the leaders keep their lease while the API server is
// down, even on a busy machine. They exit when they lose it, and the test does not restart them.
var patientLeaders = []string{"--leader-elect-lease-duration=10m", "--leader-elect-renew-deadline=9m"}

// startControlPlane starts the four processes together: each waits until its dependencies are
// available.
func (a *apart) startControlPlane() {
	a.start("kube-scheduler", append(slices.Clone(patientLeaders), "--kubeconfig="+a.config("kube-scheduler"),
		"--authentication-kubeconfig="+a.config("kube-scheduler"), "--authorization-kubeconfig="+a.config("kube-scheduler"))...)
	a.start("kube-controller-manager", append(slices.Clone(patientLeaders), "--kubeconfig="+a.config("kube-controller-manager"),
		"--authentication-kubeconfig="+a.config("kube-controller-manager"), "--authorization-kubeconfig="+a.config("kube-controller-manager"),
		"--use-service-account-credentials", "--root-ca-file="+a.pki.CA.CertFile,
		"--allocate-node-cidrs", "--cluster-cidr=10.54.0.0/16", "--service-cluster-ip-range=10.53.0.0/16")...)
	a.startAPIServer()
	a.startEtcd()
}

func (a *apart) startEtcd() {
	a.Helper()
	a.start("etcd", "--data-dir="+a.path("etcd"), "--name="+apartNode,
		"--listen-client-urls=https://127.0.0.1:2379", "--listen-peer-urls=https://127.0.0.1:2380",
		"--cert-file="+a.pki.EtcdServer.CertFile, "--key-file="+a.pki.EtcdServer.KeyFile,
		"--trusted-ca-file="+a.pki.EtcdCA.CertFile, "--client-cert-auth",
		"--peer-cert-file="+a.pki.EtcdPeer.CertFile, "--peer-key-file="+a.pki.EtcdPeer.KeyFile,
		"--peer-trusted-ca-file="+a.pki.EtcdCA.CertFile, "--peer-client-cert-auth")
}

func (a *apart) startAPIServer() {
	a.Helper()
	a.start("kube-apiserver", "--etcd-servers=https://127.0.0.1:2379", "--etcd-cafile="+a.pki.EtcdCA.CertFile,
		"--etcd-certfile="+a.pki.APIServerEtcdClient.CertFile, "--etcd-keyfile="+a.pki.APIServerEtcdClient.KeyFile,
		"--advertise-address="+apartIP, "--service-cluster-ip-range=10.53.0.0/16",
		"--tls-cert-file="+a.pki.APIServer.CertFile, "--tls-private-key-file="+a.pki.APIServer.KeyFile,
		"--client-ca-file="+a.pki.CA.CertFile,
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+a.pki.ServiceAccountPubFile, "--service-account-signing-key-file="+a.pki.ServiceAccountKeyFile,
		"--kubelet-client-certificate="+a.pki.APIServerKubeletClient.CertFile, "--kubelet-client-key="+a.pki.APIServerKubeletClient.KeyFile,
		"--kubelet-certificate-authority="+a.pki.CA.CertFile, "--kubelet-preferred-address-types=InternalIP")
}

// lowDiskConfig is a kubelet configuration that works even if the machine's disk is almost full.
const lowDiskConfig = `
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
`

// startNode starts kubelet and proxy as one process.
func (a *apart) startNode() {
	a.Helper()
	config := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration" + lowDiskConfig
	if err := os.WriteFile(a.path("node.yaml"), []byte(config), 0o600); err != nil {
		a.Fatal(err)
	}
	a.start("node", "--root="+a.home, "--cgroup-root="+apartCgroup, "--config="+a.path("node.yaml"),
		"--kubeconfig="+a.config("kubelet"), "--proxy-kubeconfig="+a.config("kube-proxy"),
		"--node-name="+apartNode, "--node-ip="+apartIP, "--cluster-cidr=10.54.0.0/16",
		"--cluster-dns=10.53.0.10", "--cluster-domain=cluster.local",
		"--client-ca-file="+a.pki.CA.CertFile, "--tls-cert-file="+a.path("pki", "kubelet.crt"), "--tls-private-key-file="+a.path("pki", "kubelet.key"))
}

// ready waits until the node is ready.
func (a *apart) ready() {
	a.Helper()
	a.eventually(time.Minute, func() error {
		for name, p := range a.running {
			select {
			case <-p.done:
				a.Fatalf("%s has exited: %v", name, p.err)
			default:
			}
		}
		node, err := a.kube.CoreV1().Nodes().Get(a.ctx, apartNode, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("conditions %+v", node.Status.Conditions)
	})
}

// url returns the URL of the Service web, accessible from the host.
func (a *apart) url() string {
	a.Helper()
	return "http://" + apartIP + ":" + a.do("get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}") + "/"
}

// answers waits until the given number of web pods respond.
func (a *apart) answers(want int) {
	a.Helper()
	url := a.url()
	a.eventually(30*time.Second, func() error {
		seen := map[string]bool{}
		for range 20 * want {
			line, _, _ := strings.Cut(a.get(url), ",")
			seen[line] = true
		}
		if len(seen) != want {
			return fmt.Errorf("responses from %v, want %d pods", seen, want)
		}
		return nil
	})
}

// runs starts pods and sends requests to them.
func (a *apart) runs() {
	file := a.path("busybox.tar")
	if err := testimage.WriteBusybox(file, busybox); err != nil {
		a.Fatal(err)
	}
	a.inside(a.binary, "image", "--root="+a.home, "import", file)
	a.eventually(30*time.Second, func() error {
		_, err := a.kube.CoreV1().ServiceAccounts(a.name).Get(a.ctx, "default", metav1.GetOptions{})
		return err
	})
	a.apply(web(2))
	a.apply(clientPod)
	a.do("wait", "--for=condition=Ready", "pod/client", "--timeout=180s")
	a.rollout("web")
	a.answers(2)

	ip := a.do("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	if !strings.HasPrefix(ip, "10.53.") {
		a.Errorf("the Service has %s", ip)
	}
	a.contains(a.exec("client", "wget -qO- http://"+ip+"/"), "Hello from pod web-")
	a.contains(a.exec("client", "wget -qO- http://"+ip+"/env"), "PASSWORD=swordfish")
	a.contains(a.exec("client", "cat /etc/resolv.conf"), "nameserver 10.53.0.10", "default.svc.cluster.local")
	a.contains(a.do("logs", "client"), "started")
	a.contains(a.do("get", "pod", "client", "-o", "wide"), " 10.54.", " "+apartNode+" ")
	a.contains(a.do("describe", "pod", "client"), "Scheduled", "Started")
	// A pod can authenticate to the API server, which it accesses through a Service.
	a.contains(a.do("exec", "deployment/web", "--", "/hyperkube", "kubectl", "auth", "whoami"), "system:serviceaccount:default:default")
	a.do("set", "env", "deployment/web", "ROUND=2")
	a.rollout("web")
	a.eventually(30*time.Second, func() error {
		if pods := a.containers(); len(pods) != 3 {
			return fmt.Errorf("pods %v", pods)
		}
		return nil
	})
	a.answers(2)
}

// lease returns a Lease in kube-system.
func (a *apart) lease(name string) (*coordinationv1.Lease, error) {
	l, err := a.kube.CoordinationV1().Leases("kube-system").Get(a.ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" || l.Spec.RenewTime == nil {
		return nil, fmt.Errorf("lease %s has no holder: %+v", name, l.Spec)
	}
	return l, nil
}

// leads checks the leases, the users of the controllers, and the secure ports.
func (a *apart) leads() {
	for _, name := range []string{"kube-controller-manager", "kube-scheduler"} {
		if _, err := a.lease(name); err != nil {
			a.Error(err)
		}
	}
	if _, err := a.kube.CoreV1().ServiceAccounts("kube-system").Get(a.ctx, "deployment-controller", metav1.GetOptions{}); err != nil {
		a.Error(err)
	}
	// The controller manager's user is not allowed to do what its controllers do.
	if out, err := a.run("", "auth", "can-i", "create", "replicasets.apps", "--as=system:kube-controller-manager"); err == nil {
		a.Errorf("the controller manager may create ReplicaSets: %s", out)
	}
	// Requests with a token that may read metrics, and without a token.
	a.do("create", "clusterrole", "metrics", "--verb=get", "--non-resource-url=/metrics")
	a.do("create", "clusterrolebinding", "metrics", "--clusterrole=metrics", "--serviceaccount=default:default")
	token := strings.TrimSpace(a.do("create", "token", "default"))
	for _, port := range []string{"10257", "10259", "10250"} {
		url := "https://" + apartIP + ":" + port + "/metrics"
		if got := a.inside("curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}", url); got != "401" && got != "403" {
			a.Errorf("%s without a token: %s", url, got)
		}
		if port == "10250" {
			continue // the kubelet requires the nodes/metrics permission
		}
		if got := a.inside("curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Authorization: Bearer "+token, url); got != "200" {
			a.Errorf("%s with a token: %s", url, got)
		}
	}
	a.alive()
}

// kill kills a component with SIGKILL.
func (a *apart) kill(name string) {
	a.Helper()
	p := a.running[name]
	delete(a.running, name)
	if err := p.cmd.Process.Kill(); err != nil {
		a.Fatal(err)
	}
	<-p.done
}

// reconnects kills etcd and then the API server. The other components must continue after the
// restart.
func (a *apart) reconnects() {
	before, url := a.containers(), a.url()
	a.kill("etcd")
	a.startEtcd()
	a.eventually(30*time.Second, func() error {
		out, err := a.run("", "create", "configmap", "after-etcd")
		if err != nil && strings.Contains(out, "already exists") {
			err = nil
		}
		return err
	})
	a.kill("kube-apiserver")
	a.contains(a.get(url), "Hello from pod web-")
	killed := time.Now()
	a.startAPIServer()
	a.eventually(30*time.Second, func() error {
		_, err := a.kube.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(a.ctx)
		return err
	})
	a.do("get", "configmap", "after-etcd")
	// This requires controllers, scheduler, kubelet and proxy.
	a.do("scale", "deployment/web", "--replicas=4")
	a.rollout("web")
	a.answers(4)
	after := a.containers()
	for name, was := range before {
		if after[name] != was {
			a.Errorf("%s was %s and is %s", name, was, after[name])
		}
	}
	for _, name := range []string{"kube-controller-manager", "kube-scheduler"} {
		a.eventually(30*time.Second, func() error {
			l, err := a.lease(name)
			if err != nil {
				return err
			}
			if !l.Spec.RenewTime.After(killed) {
				return fmt.Errorf("lease %s was last renewed at %s", name, l.Spec.RenewTime)
			}
			return nil
		})
	}
	a.contains(a.do("logs", "client"), "started")
	a.contains(a.exec("client", "echo again"), "again")
	a.ready()
	a.alive()
}

// startKubelet starts the kubelet as a separate process with a configuration file.
func (a *apart) startKubelet() {
	a.Helper()
	a.start("kubelet", "--root="+a.home, "--config="+a.path("kubelet.yaml"), "--kubeconfig="+a.config("kubelet"),
		"--hostname-override="+apartNode, "--node-ip="+apartIP)
}

// splitNode replaces `node` by kubelet and proxy, each started through a separate symlink. The pods
// must keep running.
func (a *apart) splitNode() {
	before := a.containers()
	a.stop("node")
	a.contains(a.get(a.url()), "Hello from pod web-")
	config := fmt.Sprintf(`
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://%s
clusterDNS: [10.53.0.10]
clusterDomain: cluster.local
cgroupRoot: %s
tlsCertFile: %s
tlsPrivateKeyFile: %s
authentication:
  x509: {clientCAFile: %s}
`, filepath.Join(a.home, "run/hyperkube/runtime.sock"), apartCgroup, a.path("pki", "kubelet.crt"), a.path("pki", "kubelet.key"), a.pki.CA.CertFile)
	if err := os.WriteFile(a.path("kubelet.yaml"), []byte(config+lowDiskConfig), 0o600); err != nil {
		a.Fatal(err)
	}
	a.startKubelet()
	a.start("kube-proxy", "--root="+a.home, "--kubeconfig="+a.config("kube-proxy"), "--hostname-override="+apartNode, "--cluster-cidr=10.54.0.0/16")
	a.ready()
	a.do("delete", "pod", "client", "--wait")
	delete(before, "client")
	a.do("scale", "deployment/web", "--replicas=5")
	a.rollout("web")
	a.answers(5)
	a.apply(clientPod)
	a.do("wait", "--for=condition=Ready", "pod/client", "--timeout=180s")
	a.contains(a.do("logs", "client"), "started")
	a.contains(a.exec("client", "wget -qO- http://"+a.do("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")+"/"), "Hello from pod web-")
	for name, was := range before {
		if is := a.containers()[name]; is != was {
			a.Errorf("%s was %s and is %s", name, was, is)
		}
	}
	// Keep web for reset to terminate. Delete client, which would delay reset.
	a.do("delete", "pod", "client", "--wait")
	a.alive()
}
