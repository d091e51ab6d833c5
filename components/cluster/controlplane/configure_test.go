package controlplane

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/joindiscovery"
	"hyperkube/manifests"
)

// TestClusterConfiguration: the ConfigMap in the cluster contains the configured settings and no defaults.
// An additional control plane node gets the same settings from it.
func TestClusterConfiguration(t *testing.T) {
	m := newTestNode(t)
	settings, err := decodeInit([]byte(kubeadmFile))
	if err != nil {
		t.Fatal(err)
	}
	m.settings = settings
	record, err := m.setup().token()
	if err != nil {
		t.Fatal(err)
	}
	if record.Description != "for the first machines" || time.Until(record.Expires) > 2*time.Hour {
		t.Errorf("token %+v", record)
	}
	objects, err := m.setup().objects(record)
	if err != nil {
		t.Fatal(err)
	}
	configMapData := func(name, key string) string {
		t.Helper()
		for _, o := range objects {
			if o.GetKind() == "ConfigMap" && o.GetName() == name {
				text, _, _ := unstructured.NestedString(o.Object, "data", key)
				return text
			}
		}
		t.Fatalf("no ConfigMap %s", name)
		return ""
	}
	const kubelet = "apiVersion: kubelet.config.k8s.io/v1beta1\nclusterDNS:\n- 10.96.0.10\nclusterDomain: cluster.local\nkind: KubeletConfiguration\n"
	if got := configMapData(joindiscovery.KubeletConfig, "kubelet"); got != kubelet {
		t.Errorf("kubelet configuration: %s", got)
	}
	var cluster clusterConfiguration
	if err := decodeKubeadm([]byte(configMapData(joindiscovery.ClusterConfig, "ClusterConfiguration")), map[string]any{"ClusterConfiguration": &cluster}); err != nil {
		t.Fatal(err)
	}
	var joined controlPlaneSettings
	joined.applyCluster(&cluster)
	if joined.ClusterName != "mine" || !reflect.DeepEqual(joined.Extra, settings.Extra) || !reflect.DeepEqual(joined.Volumes, settings.Volumes) || !reflect.DeepEqual(joined.Envs, settings.Envs) {
		t.Errorf("settings of an additional control plane node: %+v, want %+v", joined, settings)
	}
}

// TestExtraVolumesAndEnvs: extra volumes and environment variables are in the manifests.
func TestExtraVolumesAndEnvs(t *testing.T) {
	settings, err := decodeInit([]byte(kubeadmFile))
	if err != nil {
		t.Fatal(err)
	}
	settings.Volumes["kube-apiserver"] = append(settings.Volumes["kube-apiserver"], manifests.Volume{Name: "certs", HostPath: "/etc", MountPath: "/etc"})
	pod := renderedPod(t, "kube-apiserver", manifests.ControlPlane{Volumes: settings.Volumes, Envs: settings.Envs})
	mounts := map[string]string{}
	for _, v := range pod.Spec.Containers[0].VolumeMounts {
		mounts[v.Name] = v.MountPath
	}
	for _, usual := range []string{"audit-logs", "audit-policy"} {
		if _, ok := mounts[usual]; !ok {
			t.Errorf("no volume %s", usual)
		}
		delete(mounts, usual)
	}
	if want := map[string]string{"audit": "/audit", "certs": "/etc"}; !reflect.DeepEqual(mounts, want) || len(pod.Spec.Volumes) != 4 {
		t.Errorf("mounts of the API server %v of %d volumes, want %v", mounts, len(pod.Spec.Volumes), want)
	}
	if env := renderedPod(t, "kube-scheduler", manifests.ControlPlane{Envs: settings.Envs}).Spec.Containers[0].Env; !reflect.DeepEqual(env, settings.Envs["kube-scheduler"]) {
		t.Errorf("variables of the scheduler: %v", env)
	}
}

// TestUnchangeableSettings: a repeated init accepts the existing settings and refuses changes that the cluster
// cannot apply.
func TestUnchangeableSettings(t *testing.T) {
	m := newTestNode(t)
	same := controlPlaneSettings{
		NodeName: m.identity.NodeName, PodCIDRs: m.identity.PodCIDRs, ServiceCIDRs: m.identity.ServiceCIDRs, Domain: m.identity.Domain,
		Advertise: m.address.String(), Port: 6443,
	}
	for _, c := range []struct {
		name   string
		change func(*controlPlaneSettings)
		want   string // empty: accepted
	}{
		{"same settings", func(*controlPlaneSettings) {}, ""},
		{"no settings", func(s *controlPlaneSettings) { *s = controlPlaneSettings{Advertise: s.Advertise, Port: s.Port} }, ""},
		{"another port", func(s *controlPlaneSettings) { s.Port = 7443 }, ""},
		{"another name", func(s *controlPlaneSettings) { s.NodeName = "other" }, "--node-name: the cluster has m, which cannot change to other"},
		{"another pod CIDR", func(s *controlPlaneSettings) { s.PodCIDRs = []string{"10.9.0.0/16"} }, "--pod-network-cidr: the cluster has 10.244.0.0/16"},
		{"another service CIDR", func(s *controlPlaneSettings) { s.ServiceCIDRs = []string{"10.9.0.0/16"} }, "--service-cidr"},
		{"another domain", func(s *controlPlaneSettings) { s.Domain = "example.org" }, "--service-dns-domain"},
	} {
		t.Run(c.name, func(t *testing.T) {
			repeated := &controlPlaneNode{layout: m.layout, settings: same}
			c.change(&repeated.settings)
			err := repeated.complete()
			if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || command.ExitCode(err) != 3) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}
