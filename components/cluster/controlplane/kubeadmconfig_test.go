package controlplane

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"hyperkube/components/cluster/joindiscovery"
	"hyperkube/components/cluster/progress"
	"hyperkube/manifests"
)

const kubeadmFile = `
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
bootstrapTokens:
- token: abcdef.0123456789abcdef
  ttl: 2h
  description: for the first machines
  usages: [signing, authentication]
  groups: [system:bootstrappers:kubeadm:default-node-token]
localAPIEndpoint: {advertiseAddress: 192.0.2.1, bindPort: 7443}
nodeRegistration: {name: m1, taints: []}
patches: {directory: /patches}
skipPhases: [addon, preflight]
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
clusterName: mine
kubernetesVersion: stable-1
controlPlaneEndpoint: k8s.example.com
networking: {podSubnet: "10.1.0.0/16,fd01::/48", serviceSubnet: 10.2.0.0/16, dnsDomain: example.local}
apiServer:
  certSANs: [api.example.com]
  extraArgs: [{name: event-ttl, value: 2h}]
  extraVolumes: [{name: audit, hostPath: /var/log/audit, mountPath: /audit, readOnly: true, pathType: DirectoryOrCreate}]
scheduler: {extraEnvs: [{name: A, value: b}]}
etcd: {local: {extraArgs: [{name: quota-backend-bytes, value: "1"}]}}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
any: value
`

func TestDecodeInit(t *testing.T) {
	got, err := decodeInit([]byte(kubeadmFile))
	if err != nil {
		t.Fatal(err)
	}
	want := controlPlaneSettings{
		NodeName: "m1", Advertise: "192.0.2.1", Port: 7443, Endpoint: "k8s.example.com", SANs: []string{"api.example.com"},
		PodCIDRs: []string{"10.1.0.0/16", "fd01::/48"}, ServiceCIDRs: []string{"10.2.0.0/16"}, Domain: "example.local",
		Token: "abcdef.0123456789abcdef", TokenTTL: 2 * time.Hour, Taints: []string{}, ClusterName: "mine",
		TokenDescription: "for the first machines", TokenUsages: []string{"signing", "authentication"},
		TokenGroups: []string{"system:bootstrappers:kubeadm:default-node-token"},
		Volumes: map[string][]manifests.Volume{"kube-apiserver": {{
			Name: "audit", HostPath: "/var/log/audit", MountPath: "/audit", ReadOnly: true, PathType: corev1.HostPathDirectoryOrCreate,
		}}},
		Envs: map[string][]corev1.EnvVar{"kube-scheduler": {{Name: "A", Value: "b"}}}, Patches: "/patches", Skip: []string{"addon", "preflight"},
		Extra: map[string][]manifests.Flag{"kube-apiserver": {{Name: "event-ttl", Value: "2h"}}, "etcd": {{Name: "quota-backend-bytes", Value: "1"}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	bare, err := decodeInit(nil)
	if err != nil || bare.Port != 6443 || bare.TokenTTL != joindiscovery.DefaultTTL || bare.Taints != nil {
		t.Errorf("empty file: %+v, %v", bare, err)
	}
	for name, text := range map[string]string{
		"unknown field":    "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nimageRepository: example.com\n",
		"another version":  "apiVersion: kubeadm.k8s.io/v1beta3\nkind: ClusterConfiguration\n",
		"not YAML":         "\tx",
		"another minor":    "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.36.4\n",
		"skip proxy":       "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nskipPhases: [addon/kube-proxy]\n",
		"skip certs":       "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nskipPhases: [certs]\n",
		"etcd volume":      "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\netcd: {local: {extraVolumes: []}}\n",
		"relative volume":  "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nscheduler: {extraVolumes: [{name: a, hostPath: b, mountPath: /c}]}\n",
		"volume type":      "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nscheduler: {extraVolumes: [{name: a, hostPath: /b, mountPath: /c, pathType: Dir}]}\n",
		"bad name in envs": "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nscheduler: {extraEnvs: [{name: a=b, value: c}]}\n",
	} {
		if _, err := decodeInit([]byte(text)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestPrintTokens(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	expiring := joindiscovery.Record{Token: joindiscovery.Token{ID: "abcdef", Key: "0123456789abcdef"}, Expires: now.Add(3 * time.Hour), Usages: []string{"signing"}}
	permanent := joindiscovery.Record{Token: joindiscovery.Token{ID: "ghijkl", Key: "0123456789abcdef"}, Usages: []string{"authentication", "signing"}, Groups: []string{joindiscovery.NodeGroup}, Description: "mine"}
	var b bytes.Buffer
	if err := printTokens(&b, []corev1.Secret{*expiring.Secret(), *permanent.Secret()}, now); err != nil {
		t.Fatal(err)
	}
	var got [][]string
	for line := range strings.Lines(b.String()) {
		got = append(got, strings.Fields(line))
	}
	want := [][]string{
		{"TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA", "GROUPS"},
		{"abcdef.0123456789abcdef", "3h", "2030-01-01T03:00:00Z", "signing", "<none>", "<none>"},
		{"ghijkl.0123456789abcdef", "<forever>", "<never>", "authentication,signing", "mine", joindiscovery.NodeGroup},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q", got)
	}
}

// TestTimeouts: timeouts of kubeadm's configuration are applied, and the others have defaults.
func TestTimeouts(t *testing.T) {
	const head = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: "
	const configured = "\ntimeouts: {controlPlaneComponentHealthCheck: 1m0s, kubeletHealthCheck: 2m0s, kubernetesAPICall: 3s, etcdAPICall: 4s, tlsBootstrap: 5m0s, discovery: 6s, upgradeManifests: 7s}\n"
	want := nodeTimeouts{ControlPlane: time.Minute, Kubelet: 2 * time.Minute, Call: 3 * time.Second, Etcd: 4 * time.Second, Bootstrap: 5 * time.Minute, Discovery: 6 * time.Second, Upgrade: 7 * time.Second}
	s, err := decodeInit([]byte(head + "InitConfiguration" + configured))
	if err != nil || s.Waits != want {
		t.Errorf("init: %+v, %v", s.Waits, err)
	}
	o := &joinOptions{port: 6443}
	if err := o.decode([]byte(head + "JoinConfiguration" + configured)); err != nil || o.timeouts != want {
		t.Errorf("join: %+v, %v", o.timeouts, err)
	}
	if got := o.timeouts.worker(); got != 7*time.Minute {
		t.Errorf("timeout of a worker: %v", got)
	}
	if w := (nodeTimeouts{}); w.controlPlane() != progress.DefaultTimeout || w.worker() != progress.DefaultTimeout || w.discovery() != discoveryTimeout || w.call() != apiCallTimeout || w.etcd() != progress.DefaultTimeout || w.upgrade() != progress.DefaultTimeout {
		t.Errorf("wrong defaults of %+v", w)
	}
	if _, err := decodeInit([]byte(head + "InitConfiguration\ntimeouts: {discovery: -1s}")); err == nil || !strings.Contains(err.Error(), "timeouts.discovery: must not be negative") {
		t.Errorf("negative timeout: %v", err)
	}
}

// TestUnsupportedFields: unsupported fields of kubeadm are refused with a reason, all in one error.
func TestUnsupportedFields(t *testing.T) {
	_, err := decodeInit([]byte("apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nimageRepository: example.com\nfeatureGates: {A: true}\netcd: {local: {dataDir: /x}}\ncolour: red\n"))
	for _, want := range []string{
		`unknown field "imageRepository": no images are pulled`, `unknown field "featureGates": they are feature gates of kubeadm`,
		`unknown field "etcd.local.dataDir": etcd data is always below`, `unknown field "colour"`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
}
