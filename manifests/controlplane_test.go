package manifests

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

func values() ControlPlane {
	return ControlPlane{
		Image: "hyperkube:v1", NodeName: "m", Advertise: "fd00::1", AdvertiseURL: "[fd00::1]", Port: 6443,
		Etc: "/etc/kubernetes", PKI: "/etc/kubernetes/pki", Encryption: "/etc/kubernetes/pki/encryption.yaml",
		EtcdData: "/var/lib/hyperkube/etcd", PodCIDR: "10.244.0.0/16", ServiceCIDR: "10.96.0.0/16", Domain: "cluster.local",
	}
}

func TestStaticPods(t *testing.T) {
	for _, component := range Components() {
		data, err := values().StaticPod(component)
		if err != nil {
			t.Fatal(err)
		}
		var pod corev1.Pod
		if err := yaml.UnmarshalStrict(data, &pod); err != nil {
			t.Fatal(err)
		}
		c := pod.Spec.Containers[0]
		if pod.Name != component || pod.Namespace != "kube-system" || !pod.Spec.HostNetwork || c.Args[0] != component {
			t.Errorf("%s: %s", component, data)
		}
		if pod.Spec.PriorityClassName != "system-node-critical" || c.LivenessProbe == nil || c.StartupProbe == nil || len(c.Resources.Requests) != 2 {
			t.Errorf("%s lacks what a control plane pod must have: %s", component, data)
		}
		for _, m := range c.VolumeMounts {
			if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
				t.Errorf("%s: no volume %s", component, m.Name)
			}
		}
	}
}

// TestAPIServerLivenessIgnoresEtcd checks that the liveness of the API server does not depend on etcd: an
// API server is not restarted because etcd does not respond.
func TestAPIServerLivenessIgnoresEtcd(t *testing.T) {
	data, err := values().StaticPod("kube-apiserver")
	if err != nil {
		t.Fatal(err)
	}
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict(data, &pod); err != nil {
		t.Fatal(err)
	}
	c := pod.Spec.Containers[0]
	if path := c.LivenessProbe.HTTPGet.Path; path != "/livez?exclude=etcd" {
		t.Errorf("its life depends on %s", path)
	}
	if path := c.ReadinessProbe.HTTPGet.Path; path != "/readyz" {
		t.Errorf("it is ready by %s", path)
	}
}

func TestExtraFlags(t *testing.T) {
	v := values()
	v.Extra = map[string][]Flag{"kube-scheduler": {{"leader-elect", "false"}, {"v", "4"}}}
	data, err := v.StaticPod("kube-scheduler")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	if !strings.Contains(text, "--leader-elect=false") || strings.Contains(text, "--leader-elect=true") || !strings.Contains(text, "--v=4") {
		t.Error(text)
	}
}

// TestClientCertificates checks that only the identifier of the client certificate changes, also in
// manifests that a user has modified.
func TestClientCertificates(t *testing.T) {
	v := values()
	old, err := v.StaticPod("kube-scheduler")
	if err != nil {
		t.Fatal(err)
	}
	v.ClientCertificates = map[string]string{"kube-scheduler": "sha256-0123"}
	data, err := v.StaticPod("kube-scheduler")
	if err != nil {
		t.Fatal(err)
	}
	stamp := func(data []byte) string {
		var pod corev1.Pod
		if err := yaml.UnmarshalStrict(data, &pod); err != nil {
			t.Fatal(err)
		}
		return pod.Annotations["hyperkube.io/client-certificate"]
	}
	if stamp(old) != "" || stamp(data) != "sha256-0123" {
		t.Errorf("%s", data)
	}
	if same, err := SetClientCertificate(data, "sha256-0123"); err != nil || stamp(same) != "sha256-0123" {
		t.Errorf("%v: %s", err, same)
	}
	edited := append([]byte("# manual change\n"), data...)
	edited, err = SetClientCertificate(edited, "sha256-4567")
	if err != nil || stamp(edited) != "sha256-4567" || !strings.HasPrefix(string(edited), "# manual change\n") || len(edited) != len(data)+len("# manual change\n") {
		t.Errorf("%v: %s", err, edited)
	}
	if older, err := SetClientCertificate(old, "sha256-4567"); err != nil || stamp(older) != "sha256-4567" {
		t.Errorf("%v: %s", err, older)
	}
	if data, err := v.StaticPod("etcd"); err != nil || stamp(data) != "" {
		t.Errorf("%v: %s", err, data)
	}
}
