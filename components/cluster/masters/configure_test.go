package masters

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/trust"
	"hyperkube/manifests"
)

// TestKeptInCluster: the cluster keeps of a master what was said of it, and nothing that
// nobody said; a machine that joins as a master has the same by that.
func TestKeptInCluster(t *testing.T) {
	m := testMaster(t)
	said, err := decodeInit([]byte(kubeadmFile))
	if err != nil {
		t.Fatal(err)
	}
	m.settings = said
	record, err := m.token()
	if err != nil {
		t.Fatal(err)
	}
	if record.Description != "for the first machines" || time.Until(record.Expires) > 2*time.Hour {
		t.Errorf("the token is %+v", record)
	}
	objects, err := m.objects(record)
	if err != nil {
		t.Fatal(err)
	}
	kept := func(name, key string) string {
		t.Helper()
		for _, o := range objects {
			if o.GetKind() == "ConfigMap" && o.GetName() == name {
				text, _, _ := unstructured.NestedString(o.Object, "data", key)
				return text
			}
		}
		t.Fatalf("there is no ConfigMap %s", name)
		return ""
	}
	const kubelet = "apiVersion: kubelet.config.k8s.io/v1beta1\nclusterDNS:\n- 10.96.0.10\nclusterDomain: cluster.local\nkind: KubeletConfiguration\n"
	if got := kept(trust.KubeletConfig, "kubelet"); got != kubelet {
		t.Errorf("of kubelets: %s", got)
	}
	var cluster clusterConfiguration
	if err := decodeKubeadm([]byte(kept(trust.ClusterConfig, "ClusterConfiguration")), map[string]any{"ClusterConfiguration": &cluster}); err != nil {
		t.Fatal(err)
	}
	var joined masterSettings
	joined.ofCluster(&cluster)
	if joined.ClusterName != "mine" || !reflect.DeepEqual(joined.Extra, said.Extra) || !reflect.DeepEqual(joined.Volumes, said.Volumes) || !reflect.DeepEqual(joined.Envs, said.Envs) {
		t.Errorf("a further master has %+v, want as %+v", joined, said)
	}
}

// TestStaticPodsHaveWhatWasSaid: volumes and variables are in the manifests.
func TestStaticPodsHaveWhatWasSaid(t *testing.T) {
	said, err := decodeInit([]byte(kubeadmFile))
	if err != nil {
		t.Fatal(err)
	}
	said.Volumes["kube-apiserver"] = append(said.Volumes["kube-apiserver"], manifests.Volume{Name: "certs", HostPath: "/etc", MountPath: "/etc"})
	pod := renderedPod(t, "kube-apiserver", manifests.ControlPlane{Volumes: said.Volumes, Envs: said.Envs})
	mounts := map[string]string{}
	for _, v := range pod.Spec.Containers[0].VolumeMounts {
		mounts[v.Name] = v.MountPath
	}
	if want := map[string]string{"audit": "/audit", "certs": "/etc"}; !reflect.DeepEqual(mounts, want) || len(pod.Spec.Volumes) != 2 {
		t.Errorf("mounts of the API server %v of %d volumes, want %v", mounts, len(pod.Spec.Volumes), want)
	}
	if env := renderedPod(t, "kube-scheduler", manifests.ControlPlane{Envs: said.Envs}).Spec.Containers[0].Env; !reflect.DeepEqual(env, said.Envs["kube-scheduler"]) {
		t.Errorf("variables of the scheduler: %v", env)
	}
}

// TestKept: run again init refuses what its cluster cannot become, and takes what it is.
func TestKept(t *testing.T) {
	m := testMaster(t)
	same := masterSettings{
		NodeName: m.identity.NodeName, PodCIDRs: m.identity.PodCIDRs, ServiceCIDRs: m.identity.ServiceCIDRs, Domain: m.identity.Domain,
		Advertise: m.address.String(), Port: 6443,
	}
	for _, c := range []struct {
		name   string
		change func(*masterSettings)
		want   string // empty: taken
	}{
		{"the same", func(*masterSettings) {}, ""},
		{"nothing said", func(s *masterSettings) { *s = masterSettings{Advertise: s.Advertise, Port: s.Port} }, ""},
		{"another port", func(s *masterSettings) { s.Port = 7443 }, ""},
		{"another name", func(s *masterSettings) { s.NodeName = "other" }, "--node-name: it is m and cannot become other"},
		{"other pods", func(s *masterSettings) { s.PodCIDRs = []string{"10.9.0.0/16"} }, "--pod-network-cidr: it is 10.244.0.0/16"},
		{"other services", func(s *masterSettings) { s.ServiceCIDRs = []string{"10.9.0.0/16"} }, "--service-cidr"},
		{"another domain", func(s *masterSettings) { s.Domain = "example.org" }, "--service-dns-domain"},
	} {
		t.Run(c.name, func(t *testing.T) {
			again := &master{layout: m.layout, settings: same}
			c.change(&again.settings)
			err := again.decide()
			if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || command.ExitCode(err) != 3) {
				t.Errorf("said %v, want %q", err, c.want)
			}
		})
	}
}
