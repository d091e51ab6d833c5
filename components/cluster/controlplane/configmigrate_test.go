package controlplane

import (
	"strings"
	"testing"
)

// TestMigrate converts files of kubeadm to files that init and join accept. Settings that are left
// out are reported.
func TestMigrate(t *testing.T) {
	const old = `
apiVersion: kubeadm.k8s.io/v1beta3
kind: InitConfiguration
bootstrapTokens:
- {token: abcdef.0123456789abcdef, ttl: 24h0m0s}
- {token: abcdef.0123456789abcdeg}
localAPIEndpoint: {advertiseAddress: 192.0.2.1, bindPort: 6443}
nodeRegistration: {criSocket: "unix:///run/containerd/containerd.sock", imagePullPolicy: IfNotPresent, name: m, kubeletExtraArgs: {v: "4", cloud-provider: external}}
---
apiVersion: kubeadm.k8s.io/v1beta3
kind: ClusterConfiguration
apiServer: {extraArgs: {profiling: "false", anonymous-auth: "true"}, timeoutForControlPlane: 4m0s}
certificatesDir: /etc/kubernetes/pki
etcd: {local: {dataDir: /var/lib/etcd, extraArgs: {quota-backend-bytes: "1"}}}
imageRepository: registry.k8s.io
kubernetesVersion: v1.30.0
networking: {podSubnet: 10.1.0.0/16}
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
---
apiVersion: kubeadm.k8s.io/v1beta3
kind: JoinConfiguration
discovery: {timeout: 2m0s, bootstrapToken: {token: abcdef.0123456789abcdef, apiServerEndpoint: "h:6443", unsafeSkipCAVerification: true}}
`
	text, notes, err := migrate([]byte(old))
	if err != nil {
		t.Fatal(err)
	}
	if err := validateConfig(text); err != nil {
		t.Errorf("the result is not valid: %v\n%s", err, text)
	}
	s, err := decodeInit(text)
	if err != nil || s.NodeName != "m" || s.Advertise != "192.0.2.1" || s.Token != "abcdef.0123456789abcdef" || len(s.Extra["kube-apiserver"]) != 2 || !s.CloudProvider.IsExternal() || len(s.Extra["kube-controller-manager"]) != 1 ||
		s.Extra["kube-apiserver"][0].Name != "anonymous-auth" || len(s.Extra["etcd"]) != 1 || s.PodCIDRs[0] != "10.1.0.0/16" {
		t.Errorf("settings of init: %+v, %v", s, err)
	}
	o := &joinOptions{port: 6443}
	if err := o.decode(text); err != nil || o.discovery.Endpoint != "h:6443" || o.timeouts.discovery().String() != "2m0s" {
		t.Errorf("options of join: %+v, %v", o, err)
	}
	all := strings.Join(notes, "\n")
	for _, want := range []string{
		"InitConfiguration: nodeRegistration.criSocket is left out", "InitConfiguration: nodeRegistration.imagePullPolicy is left out",
		"nodeRegistration.kubeletExtraArgs: arguments other than cloud-provider are left out", "all bootstrapTokens except the first", "ClusterConfiguration: imageRepository is left out",
		"apiServer.timeoutForControlPlane is left out", "certificatesDir is left out", "etcd.local.dataDir is left out",
		"kubernetesVersion is changed from v1.30.0", "KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1 is left out",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("output lacks %q:\n%s", want, all)
		}
	}
	again, notes, err := migrate(text)
	if err != nil || string(again) != string(text) || len(notes) > 0 {
		t.Errorf("second migration: %v, %q\n%s", err, notes, again)
	}
	for bad, want := range map[string]string{
		"": "no supported document of kubeadm", "kind: Pod\napiVersion: v1": "no supported document of kubeadm", "{": "reading YAML",
		"apiVersion: kubeadm.k8s.io/v1beta2\nkind: InitConfiguration":                                                "v1beta2 is not supported",
		"apiVersion: kubeadm.k8s.io/v1beta3\nkind: ClusterConfiguration\napiServer: {extraArgs: {profiling: false}}": "profiling: expected a string",
	} {
		if _, _, err := migrate([]byte(bad)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", bad, err, want)
		}
	}
}
