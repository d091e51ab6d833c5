package controlplane

import "testing"

// FuzzDecodeInit decodes arbitrary files as configuration of a control plane node.
func FuzzDecodeInit(f *testing.F) {
	f.Add(kubeadmFile)
	f.Add("{apiVersion: kubeadm.k8s.io/v1beta4, kind: InitConfiguration, bootstrapTokens: [null], nodeRegistration: {taints: [{key: a}]}}")
	f.Add("{apiVersion: kubeadm.k8s.io/v1beta4, kind: ClusterConfiguration, networking: {podSubnet: \",,\"}, etcd: {local: {extraArgs: [{}]}}}")
	f.Add("---\n---\n--- #\n")
	f.Add("a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]")
	f.Fuzz(func(_ *testing.T, text string) {
		_, _ = decodeInit([]byte(text))
	})
}
