package masters

import (
	"reflect"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

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
